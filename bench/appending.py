"""What a durable append costs, beside the floors, and whether it stays the same as a conversation grows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.corpus import Corpus
from bench.lanes import FILES, FLOORS, HOP, INSERT, LINE, OURS, SQLITE, interleave, prepare
from bench.results import Limit, Result, at_most, paired, spread
from bench.scale import Scale, progress, scratch
from bench.show import micros

__all__ = ["appending"]

_PAIRS: tuple[tuple[str, str, Limit | None], ...] = (
    (SQLITE, INSERT, at_most(2.0)),
    (SQLITE, HOP, at_most(1.3)),
    (FILES, LINE, None),
)


async def appending(scale: Scale) -> list[Result]:
    conversation = prepare(Corpus().conversation(max(scale.turns)))
    results: list[Result] = []
    for turns in scale.turns:
        longest = turns == max(scale.turns)
        runs = []
        for repeat in range(scale.repeats):
            progress(f"append: {turns} turns, repeat {repeat + 1} of {scale.repeats}")
            with scratch() as folder:
                runs.append(await interleave({**OURS, **FLOORS}, conversation[:turns], folder))
        for ours, floor, limit in _PAIRS:
            mine, theirs = [run[ours] for run in runs], [run[floor] for run in runs]
            results.append(
                Result(
                    f"append, {turns} turns: {ours} / {floor}",
                    micros(_typical(mine)),
                    micros(_typical(theirs)),
                    paired(mine, theirs),
                    limit if longest else None,
                )
            )
        if longest:
            short = min(scale.turns)
            results += [_flatness(name, [run[name] for run in runs], short) for name in (SQLITE, FILES, INSERT)]
    return results


def _typical(runs: Sequence[Sequence[float]]) -> float:
    return statistics.median(statistics.median(run) for run in runs)


def _flatness(name: str, runs: Sequence[Sequence[float]], short: int) -> Result:
    """The last tenth of the appends beside the ten up to the length of a short conversation, in the same run."""
    early = slice(max(0, short - 10), short)
    late = [statistics.median(run[-max(1, len(run) // 10) :]) for run in runs]
    before = [statistics.median(run[early]) for run in runs]
    return Result(
        f"append time, {name}: last tenth / turns {early.start + 1}-{early.stop}",
        micros(statistics.median(late)),
        micros(statistics.median(before)),
        spread([after / first for after, first in zip(late, before, strict=True)]),
        at_most(1.2) if name in OURS else None,
    )
