"""Twenty snapshots of a folder that changes a little cost little more than what changed."""

from __future__ import annotations

import functools
from pathlib import Path
from random import Random

import pytest

from clew.log.blobs import pack_blob
from clew.workspace import SnapshotRef, Workspace
from clew.workspace.chunks import ONE_CHUNK
from tests.stores import STORES, make_store

pytestmark = pytest.mark.anyio

SNAPSHOTS = 20
FILES = 250
LARGE = 6_000_000
INSERTED = 2_000
PER_FOLDER = 12
MOST = 1.3
"""How many times the bytes that changed may be stored, for the trees and what else it takes."""


class Text:
    """Words that occur as unevenly as those of a language, in lines of uneven length: it compresses about as prose does."""

    def __init__(self, seed: str) -> None:
        self._dice = Random(seed)
        syllables = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]
        self._words = ["".join(self._dice.choices(syllables, k=self._dice.randint(1, 4))) for _ in range(8_000)]
        self._weights, total = [], 0.0
        for rank in range(1, len(self._words) + 1):
            total += 1 / rank
            self._weights.append(total)

    def write(self, size: int) -> bytes:
        words = self._dice.choices(self._words, cum_weights=self._weights, k=size // 3)
        lines = [" ".join(words[place : place + 11]) for place in range(0, len(words), 11)]
        return "\n".join(lines).encode()[:size]


@functools.lru_cache(1)
def first_files() -> dict[str, bytes]:
    """About 20 MB: files from a page to a book, and a large one."""
    dice, text = Random("sizes"), Text("files")
    sizes = {f"{n // PER_FOLDER:02}/{n:03}.txt": dice.randint(2_000, 110_000) for n in range(FILES)}
    return {name: text.write(size) for name, size in {**sizes, "large.log": LARGE}.items()}


class Churn:
    """A folder of which one file in a hundred changes at a time, and every other time a few lines of a large one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = dict(first_files())
        self._dice, self._text = Random("churn"), Text("changes")
        for name, data in self._files.items():
            self._write(name, data)

    @property
    def size(self) -> int:
        return sum(map(len, self._files.values()))

    def change_some(self) -> int:
        """Returns the bytes of what changed, compressed. Files up to a mebibyte are one chunk and count as a whole."""
        names = self._dice.sample([name for name in self._files if name != "large.log"], k=3)
        rewritten, edited, appended = names
        self._write(rewritten, self._text.write(len(self._files[rewritten])))
        self._insert(edited, self._text.write(300), replace=300)
        self._write(appended, self._files[appended] + self._text.write(500))
        return sum(len(pack_blob(self._files[name])[1]) for name in names)

    def change_large(self) -> int:
        """The same. The large file counts as the mebibyte around what was inserted."""
        place = max(0, self._insert("large.log", self._text.write(INSERTED)) - ONE_CHUNK // 2)
        return len(pack_blob(self._files["large.log"][place : place + ONE_CHUNK])[1])

    def _insert(self, name: str, data: bytes, replace: int = 0) -> int:
        was = self._files[name]
        place = self._dice.randrange(len(was))
        self._write(name, was[:place] + data + was[place + replace :])
        return place

    def _write(self, name: str, data: bytes) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self._files[name] = data


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.slow
async def test_twenty_snapshots_cost_the_first_and_little_more_than_what_changed(kind: str, tmp_path: Path) -> None:
    churn = Churn(tmp_path / "work")
    refs: list[SnapshotRef] = []
    changed: list[int] = []
    async with make_store(kind, tmp_path / "kept") as store:
        workspace = Workspace(tmp_path / "work", store)
        for number in range(SNAPSHOTS):
            changed.append(churn.change_some() if number else 0)
            changed[-1] += churn.change_large() if number % 2 else 0
            refs.append(await workspace.snapshot())
            again = await workspace.snapshot()
            assert (again.digest, again.new_bytes) == (refs[-1].digest, 0)
        assert (refs[0].files, refs[-1].bytes, refs[-1].skipped) == (FILES + 1, churn.size, ())
        assert len({ref.digest for ref in refs}) == SNAPSHOTS
    stored = [ref.new_bytes for ref in refs]
    on_disk = sum(path.stat().st_size for path in (tmp_path / "kept").rglob("*") if path.is_file())
    print(f"{kind}: {refs[0].bytes} bytes, stored as {stored[0]}, {on_disk} on disk")
    print(f"changed {sum(changed)}, stored as {sum(stored[1:])}")
    print(f"when the large file did not: changed {sum(changed[2::2])}, stored as {sum(stored[2::2])}")
    assert 0.2 < stored[0] / refs[0].bytes < 0.5
    assert sum(stored[1:]) < MOST * sum(changed)
    assert all(new < MOST * size for new, size in zip(stored[2::2], changed[2::2], strict=True))
    if kind != "memory":
        assert sum(stored) < on_disk < stored[0] + MOST * sum(changed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORES)
async def test_a_folder_that_did_not_change_stores_nothing_whoever_looks(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the object that took the last snapshot, by another that has its cache, and by one that reads everything."""
    Churn(tmp_path / "work")
    async with make_store(kind, tmp_path / "kept") as store:
        workspace = Workspace(tmp_path / "work", store)
        first = await workspace.snapshot()
        others = [await workspace.snapshot(), await Workspace(tmp_path / "work", store).snapshot()]
        monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "another cache"))
        others.append(await Workspace(tmp_path / "work", store).snapshot())
    assert first.new_bytes > 0
    assert [(other.digest, other.new_bytes) for other in others] == [(first.digest, 0)] * 3
