"""How much a conversation takes on the disk, beside its JSON text."""

from __future__ import annotations

from bench.corpus import Corpus, json_size
from bench.lanes import FILES, SQLITE, clew_files, clew_sqlite, one_insert, prepare
from bench.results import Result, at_most, spread
from bench.scale import Scale, files_size, progress, scratch
from bench.show import size
from bench.syllables import Syllables

__all__ = ["sizes"]

_STORES = ((SQLITE, clew_sqlite, "clew.db"), (FILES, clew_files, "clew"), ("plain INSERTs", one_insert, "insert.db"))


async def sizes(scale: Scale) -> list[Result]:
    results: list[Result] = []
    longest = max(scale.turns)
    for corpus, lengths, of in ((Corpus(), scale.turns, ""), (Syllables(), (longest,), " of syllables")):
        conversation = corpus.conversation(longest)
        for turns in lengths:
            text = json_size(conversation[:turns])
            for name, lane, file in _STORES:
                progress(f"size: {turns} turns{of}, {name}")
                with scratch() as folder:
                    async with lane(folder) as save:
                        for turn in prepare(conversation[:turns]):
                            await save(turn)
                    taken = files_size(folder / file)
                limit = at_most(0.45) if turns == longest and name == SQLITE else None
                what = f"bytes on disk, {turns} turns{of}: {name} / JSON text"
                results.append(Result(what, size(taken), size(text), spread([taken / text]), limit))
    return results
