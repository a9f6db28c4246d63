"""An import killed at any moment and run again: it ends as if nothing had happened, and until then nobody sees half a
conversation."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import msgspec
import pytest

from clew import Thread, open_checkpointer
from clew.checkpointers import Checkpointer
from clew.messages import plain_text
from clew.threads.heads import is_hidden
from clew.workspace import Workspace
from tests.crash.processes import FULL, Speaker, url_of
from tests.sampling import dice, sampled
from tests.threads.moving import KEY

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.crash]

KILLS = 40 if FULL else 6
Texts = dict[str, list[str]]


def write_source(folder: Path, texts: Texts, file: str) -> str:
    """Write conversations and their files where the importing process finds them."""
    (folder / "files").mkdir(parents=True, exist_ok=True)
    (folder / "files" / "plan.txt").write_text(file)
    (folder / "files" / "large.bin").write_bytes(file.encode() * 50_000)
    (folder / "texts.json").write_bytes(msgspec.json.encode(texts))
    return str(folder / "texts.json")


def run(arguments: list[str]) -> list[float]:
    """Import to the end; at which times, from the beginning, it said something."""
    said = []
    with Speaker("tests.crash.importer", *arguments) as importer:
        assert importer.hear() == "start"
        began = time.monotonic()
        while importer.hear() != "done":
            said.append(time.monotonic() - began)
        assert importer.wait() == 0
    return said


def kill_one(arguments: list[str], steps: int, delay: float) -> bool:
    """Kill an import this long after it has said so many things. Returns whether it was still at work."""
    with Speaker("tests.crash.importer", *arguments) as importer:
        assert importer.hear() == "start"
        done = any(importer.hear() == "done" for _ in range(steps))
        time.sleep(delay)
        importer.signal(signal.SIGKILL)
        return importer.wait() == -signal.SIGKILL and not done


async def seen(store: Checkpointer, folder: Path) -> dict[str, tuple[list[str], str, str]]:
    """Everything that a user sees in the store: words, title and a file of each thread. All of it is intact."""
    found = {}
    async for head in Thread.list(store):
        state = await Thread.load(store, head.thread_id)
        assert (await Thread.verify(store, head.thread_id)).sound
        assert (head.status, head.turns, head.tags) == ("done", state.turns, state.tags)
        assert state.workspace is not None
        assert state.usage.output_tokens == 5 * state.turns
        there = folder / f"{head.thread_id} {state.workspace.digest[:8]}"
        await Workspace(there, store).restore(state.workspace)
        words = [plain_text(message) for message in state.messages]
        found[state.tags["imported_key"]] = words, state.title, (there / "plan.txt").read_text()
    return found


def expected(texts: Texts, file: str) -> dict[str, tuple[list[str], str, str]]:
    return {key: (said, f"About {key}", file) for key, said in texts.items()}


@pytest.mark.parametrize(
    ("kind", "key"), sampled([(kind, key) for kind in ("sqlite", "files") for key in ("", KEY)], 2)
)
async def test_an_import_killed_at_random_moments_and_run_again_ends_right(kind: str, key: str, tmp_path: Path) -> None:
    chance = dice(f"imports {kind} {key}")
    large = [f"{number} " + chance.randbytes(6000).hex() for number in range(60)]
    first: Texts = {"a": ["Hi.", "Hello."], "large": large, "z": ["Bye.", "So long."]}
    grown: Texts = {
        **first,
        "a": [*first["a"], "More?", "More."],
        "large": [*large, "On?", "On."],
        "new": ["New.", "Yes."],
    }
    source = write_source(tmp_path / "source", first, "one")
    said = run([source, url_of(kind, tmp_path / "whole"), key])
    kills = parts = 0
    while kills < KILLS or (parts == 0 and kills < 10 * KILLS):
        target = url_of(kind, tmp_path / f"target {kills}")
        arguments = [source, target, key]
        for texts, before, file in [(first, {}, "one"), (grown, expected(first, "one"), "two")]:
            write_source(tmp_path / "source", texts, file)
            after = expected(texts, file)
            for _ in range(chance.choice([1, 2])):
                kills += kill_one(arguments, chance.randrange(len(said)), chance.uniform(0, 2 * said[-1] / len(said)))
                async with open_checkpointer(target, key=key or None) as store:
                    for name, thread in (await seen(store, tmp_path / f"{kills} {file}")).items():
                        assert thread in (before.get(name), after[name]), name
                    parts += len([head async for head in store.heads() if is_hidden(head)])
            run(arguments)
            async with open_checkpointer(target, key=key or None) as store:
                assert await seen(store, tmp_path / f"{kills} {file} done") == after
                assert [head async for head in store.heads() if is_hidden(head)] == []
    print(f"{kind}: {kills} kills within {said[-1]:.2f} s and {len(said)} steps, {parts} left a part")
    assert parts >= (KILLS // 10 if FULL else 1)
