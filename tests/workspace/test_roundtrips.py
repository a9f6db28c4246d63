"""Whatever a folder holds and whatever becomes of it: a restore brings back exactly what was there, on every store."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol, TypeVar

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from clew.checkpointers import Checkpointer, MemoryCheckpointer, SealedCheckpointer
from clew.log.keys import Keyring
from clew.workspace import Workspace
from tests.sampling import FULL, SEED
from tests.stores import STORES, make_store
from tests.workspace.trees import HOLE, facts

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(os.open not in os.supports_dir_fd, reason="restores need names relative to open folders"),
]

EXAMPLES = 300 if FULL else 20
LONGEST_PATH = 2000
SETTLED = 0.025
"""Seconds after which a file is old enough for the cache to be trusted; but for those with times of whole seconds."""
KEEP_SIZE, PUNCH_HOLE = 1, 2

FILES, FOLDERS, LINKS = stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK
NAMES = [b"a", b"b", b"c.txt", b"-rf", b"--", b"with space", b"line\nbreak", b"...", "ünïcode".encode(), b"x" * 255]
if sys.platform == "linux":  # others want UTF-8
    NAMES += [b"\xff\xfe", b"\x80" * 255]
TARGETS = [b"a", b"..", b".", b"gone", b"a/b", b"/etc/passwd", b"/", b"line\nbreak", b"t" * 1000, b"x" * 255]
SIZES = [0, 1, 512, 513, 5_000, 70_000]
LARGE = [1_500_000, 3_000_000]
SPARSE_SIZES = [HOLE, 3 * HOLE, 9 * HOLE + 1]
FILLINGS = ["text", "noise", "zeros"]
FILE_MODES = [0o644, 0o600, 0o755, 0o444, 0o400, 0o4755, 0o2755, 0o6711, 0o777]
FOLDER_MODES = [0o755, 0o700, 0o555, 0o500, 0o1777, 0o2755]
MOMENTS = [
    0,
    -1,
    -1_500_000_001,
    -(2**31) * 10**9,
    1,
    10**18,
    10**18 + 123_456_789,
    1_700_000_000_999_999_999,
    2**31 * 10**9 + 5,
    2**63 - 1,
    14 * 10**18 + 1,
]


class Thing(Protocol):
    """Something that can be at a path where nothing is."""

    def put(self, path: bytes, root: bytes) -> None: ...


class Step(Protocol):
    """Something that is done to a folder. Which name it is done to is a number, counted in the names that there are: so
    a step is possible in any folder, and others can be left out without it."""

    def do(self, root: bytes) -> None: ...


class File(NamedTuple):
    size: int
    filling: str
    variant: int

    def put(self, path: bytes, root: bytes) -> None:
        with open(path, "wb") as file:
            file.write(content(*self))


class Sparse(NamedTuple):
    """A file with data in a few places and nothing between them, and maybe nothing at its end."""

    places: frozenset[int]
    size: int

    def put(self, path: bytes, root: bytes) -> None:
        with open(path, "wb") as file:
            for place in sorted(self.places):
                file.seek(place * HOLE)
                file.write(content(5_000, "noise", place))
            file.truncate(max(self.size, file.tell()))


class Folder(NamedTuple):
    files: int

    def put(self, path: bytes, root: bytes) -> None:
        os.mkdir(path)
        for number in range(self.files):
            File(600, "text", number).put(path + b"/%d" % number, root)


class Link(NamedTuple):
    target: bytes

    def put(self, path: bytes, root: bytes) -> None:
        os.symlink(self.target, path)


class Name(NamedTuple):
    """One more name of a file, or of a symbolic link, that is anywhere in the folder; if there is none, an empty file."""

    which: int

    def put(self, path: bytes, root: bytes) -> None:
        other = pick(root, self.which, FILES, FILES, LINKS)
        if other is None:
            File(0, "text", 0).put(path, root)
        else:
            os.link(other, path, follow_symlinks=False)


class Add(NamedTuple):
    """Something new, under this name or the next that nothing has."""

    where: int
    name: bytes
    thing: Thing

    def do(self, root: bytes) -> None:
        folder = pick(root, self.where, FOLDERS) or root
        first = NAMES.index(self.name)
        free = [name for name in NAMES[first:] + NAMES[:first] if not os.path.lexists(folder + b"/" + name)]
        if free and len(folder) + len(free[0]) < LONGEST_PATH:
            with opened_up(folder):
                self.thing.put(folder + b"/" + free[0], root)


class Spread(NamedTuple):
    """More names for a file, one in each folder below the root, as tools that install packages give."""

    which: int
    name: bytes

    def do(self, root: bytes) -> None:
        if path := pick(root, self.which, FILES):
            for folder in [folder for folder in walk(root) if kind_of(folder) == FOLDERS and folder != root]:
                new = folder + b"/" + self.name
                if len(new) < LONGEST_PATH and not os.path.lexists(new):
                    with opened_up(folder):
                        os.link(path, new)


class Mode(NamedTuple):
    which: int
    mode: int

    def do(self, root: bytes) -> None:
        if path := pick(root, self.which, FILES):
            os.chmod(path, self.mode)


class FolderMode(NamedTuple):
    which: int
    mode: int

    def do(self, root: bytes) -> None:
        os.chmod(pick(root, self.which, FOLDERS) or root, self.mode)


class Time(NamedTuple):
    which: int
    moment: int

    def do(self, root: bytes) -> None:
        path = pick(root, self.which, FILES, FOLDERS, LINKS) or root
        os.utime(path, ns=(self.moment, self.moment), follow_symlinks=False)


class Rewrite(NamedTuple):
    which: int
    file: File

    def do(self, root: bytes) -> None:
        if path := pick(root, self.which, FILES):
            with opened_up(path):
                self.file.put(path, root)


class Append(NamedTuple):
    which: int
    size: int

    def do(self, root: bytes) -> None:
        if path := pick(root, self.which, FILES):
            with opened_up(path), open(path, "ab") as file:
                file.write(content(self.size, "text", 7))


class Edit(NamedTuple):
    """Other bytes in the middle of a file, and maybe nothing in its size and time that shows it."""

    which: int
    keep_time: bool

    def do(self, root: bytes) -> None:
        if path := pick(root, self.which, FILES):
            was = os.lstat(path)
            with opened_up(path), open(path, "r+b") as file:
                file.seek(was.st_size // 2)
                byte = file.read(1)
                file.seek(was.st_size // 2)
                file.write(bytes(value ^ 0xFF for value in byte))
            if self.keep_time:
                os.utime(path, ns=(was.st_mtime_ns, was.st_mtime_ns))


class Truncate(NamedTuple):
    """A file that is made to grow ends in a hole. Not of a size that a tree keeps in itself: such a hole does not come
    back, and saves nothing."""

    which: int
    size: int

    def do(self, root: bytes) -> None:
        if path := pick(root, self.which, FILES):
            with opened_up(path):
                os.truncate(path, self.size)


class Punch(NamedTuple):
    """A hole in the middle of a file."""

    which: int

    def do(self, root: bytes) -> None:
        files = [path for path in walk(root) if kind_of(path) == FILES and os.lstat(path).st_size >= 70_000]
        if files:
            path = files[self.which % len(files)]
            with opened_up(path), open(path, "r+b") as file:
                punch(file.fileno(), os.fstat(file.fileno()).st_size)


class Split(NamedTuple):
    """What an editor does that saves to a new file and renames it: the same bytes, and a name of its own again."""

    which: int

    def do(self, root: bytes) -> None:
        if path := pick(root, self.which, FILES):
            with opened_up(os.path.dirname(path)):
                shutil.copy2(path, os.path.dirname(path) + b"/saved")
                os.rename(os.path.dirname(path) + b"/saved", path)


class Delete(NamedTuple):
    which: int

    def do(self, root: bytes) -> None:
        if path := pick(root, self.which, FILES, FOLDERS, LINKS):
            with opened_up(os.path.dirname(path)):
                remove(path)


class Become(NamedTuple):
    """Something else has the name: a folder where a file was, and the like."""

    which: int
    thing: Thing

    def do(self, root: bytes) -> None:
        if path := pick(root, self.which, FILES, FOLDERS, LINKS):
            with opened_up(os.path.dirname(path)):
                remove(path)
                self.thing.put(path, root)


class Move(NamedTuple):
    """Another name, maybe in another folder, maybe over something that had it."""

    which: int
    where: int
    name: bytes

    def do(self, root: bytes) -> None:
        old = pick(root, self.which, FILES, FOLDERS, LINKS)
        folder = pick(root, self.where, FOLDERS) or root
        new = folder + b"/" + self.name
        if old is None or (folder + b"/").startswith(old + b"/") or (old + b"/").startswith(new + b"/"):
            return
        if max(map(len, walk(old))) + len(new) > LONGEST_PATH:
            return
        with opened_up(os.path.dirname(old)), opened_up(folder):
            if os.path.lexists(new) and FOLDERS in (kind_of(old), kind_of(new)):
                remove(new)
            mode = stat.S_IMODE(os.lstat(old).st_mode)
            if kind_of(old) == FOLDERS:  # whose `..` changes, so that its owner has to be allowed to write to it
                os.chmod(old, 0o700)
            os.rename(old, new)
            if kind_of(new) == FOLDERS:
                os.chmod(new, mode)


@functools.lru_cache(64)
def content(size: int, filling: str, variant: int) -> bytes:
    if filling == "noise":
        return Random(variant).randbytes(size)
    return bytes(size) if filling == "zeros" else (b"%d green bottles\n" % variant * size)[:size]


def punch(fd: int, size: int) -> None:
    """Make a hole of all but the ends of a file; where the system cannot, zeros."""
    start, length = 8_192, (size - 16_384) // 4_096 * 4_096
    call = getattr(ctypes.CDLL(None), "fallocate", None)
    large = ctypes.c_longlong
    if call is None or call(fd, PUNCH_HOLE | KEEP_SIZE, large(start), large(length)) != 0:
        os.pwrite(fd, bytes(length), start)


def kind_of(path: bytes) -> int:
    return stat.S_IFMT(os.lstat(path).st_mode)


def walk(path: bytes) -> Iterator[bytes]:
    """This path and all below it, a folder before what is in it."""
    yield path
    if kind_of(path) == FOLDERS:
        for name in sorted(os.listdir(path)):
            yield from walk(path + b"/" + name)


def pick(root: bytes, number: int, *kinds: int) -> bytes | None:
    """One of the paths of these kinds, without the root but among folders alone."""
    found = [path for path in walk(root) if kind_of(path) in kinds and (path != root or kinds == (FOLDERS,))]
    return found[number % len(found)] if found else None


@contextmanager
def opened_up(path: bytes) -> Iterator[None]:
    """Let its owner do everything with it for a while."""
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    os.chmod(path, mode | 0o700)
    yield
    os.chmod(path, mode)


def remove(path: bytes) -> None:
    if kind_of(path) != FOLDERS:
        os.unlink(path)
        return
    for below in walk(path):
        if kind_of(below) == FOLDERS:
            os.chmod(below, 0o700)
    shutil.rmtree(path)


def look(folder: Path) -> dict[bytes, tuple[object, ...]]:
    """All there is to know, with a number for long contents: a difference is to be read by somebody."""
    return {
        path: tuple(hash(part) if isinstance(part, bytes) and len(part) > 100 else part for part in told)
        for path, told in facts(folder).items()
    }


T = TypeVar("T")


def weighted(*some: tuple[int, st.SearchStrategy[T]]) -> st.SearchStrategy[T]:
    """One of these, each as often as its number says; `one_of` takes each only once."""
    drawn = [strategy for weight, strategy in some for _ in range(weight)]
    return st.integers(0, len(drawn) - 1).flatmap(drawn.__getitem__)


def lists(steps: st.SearchStrategy[Step]) -> st.SearchStrategy[list[Step]]:
    """Some twenty of these, and yet any number that shows a fault."""
    parts = st.tuples(*[st.lists(steps, max_size=15)] * 4)
    return parts.map(lambda some: [step for part in some for step in part])


numbers, places = st.integers(0, 40), st.integers(-4, 4)
names = st.sampled_from(NAMES)
files = st.builds(File, st.sampled_from(SIZES * 8 + LARGE), st.sampled_from(FILLINGS), st.integers(0, 3))
things: st.SearchStrategy[Thing] = weighted(
    (6, files),
    (3, st.builds(Folder, st.integers(0, 2))),
    (3, st.builds(Name, numbers)),
    (2, st.builds(Link, st.sampled_from(TARGETS))),
    (1, st.builds(Sparse, st.frozensets(st.integers(0, 7), max_size=3), st.sampled_from(SPARSE_SIZES))),
)
builds: st.SearchStrategy[Step] = weighted(
    (8, st.builds(Add, places, names, things)),
    (1, st.builds(Spread, numbers, names)),
    (1, st.builds(Mode, numbers, st.sampled_from(FILE_MODES))),
    (1, st.builds(FolderMode, places, st.sampled_from(FOLDER_MODES))),
    (1, st.builds(Time, numbers, st.sampled_from(MOMENTS))),
)
changes: st.SearchStrategy[Step] = weighted(
    (3, builds),
    (1, st.builds(Rewrite, numbers, files)),
    (1, st.builds(Append, numbers, st.sampled_from([1, 600, 5_000]))),
    (2, st.builds(Edit, numbers, st.booleans())),
    (1, st.builds(Truncate, numbers, st.sampled_from([0, 513, 5_000, 300_000]))),
    (1, st.builds(Punch, numbers)),
    (2, st.builds(Split, numbers)),
    (1, st.builds(Delete, numbers)),
    (2, st.builds(Become, numbers, things)),
    (2, st.builds(Move, numbers, places, names)),
)


class Habit:
    """How a workspace is used: with one object for all, with an object each time that has its cache from the disk, or
    with nothing known of earlier snapshots."""

    def __init__(self, kind: str, folder: Path, store: Checkpointer, monkeypatch: pytest.MonkeyPatch) -> None:
        self._kind = kind
        self._folder = folder
        self._store = store
        self._monkeypatch = monkeypatch
        self._same = Workspace(folder, store)
        self._count = 0

    def workspace(self) -> Workspace:
        if self._kind == "one object":
            return self._same
        if self._kind == "no cache":
            self._count += 1
            self._monkeypatch.setenv("CLEW_CACHE", str(self._folder.with_name(f"cache {self._count}")))
        return Workspace(self._folder, self._store)

    def settle(self) -> None:
        if self._kind != "no cache":
            time.sleep(SETTLED)


async def round_trip(
    workspace: Callable[[], Workspace], settle: Callable[[], None], steps: list[Sequence[Step]]
) -> None:
    folder = workspace().path
    refs, looks = [], []
    for some in steps:
        for step in some:
            step.do(os.fsencode(folder))
        settle()
        refs.append(await workspace().snapshot())
        looks.append(look(folder))
        assert refs[-1].skipped == ()
    restored = await workspace().restore(refs[0], setuid=True)
    assert look(folder) == looks[0]
    assert restored.before_restore is not None or len(looks[1]) == 1
    assert restored.before_restore is None or restored.before_restore.digest == refs[1].digest
    await workspace().restore(refs[1], setuid=True)
    assert look(folder) == looks[1]
    settle()
    assert (await workspace().snapshot()).digest == refs[1].digest
    for number, ref in enumerate(refs):
        other = folder.with_name(f"other {number}")
        await workspace().restore(ref, into=other, setuid=True)
        assert look(other) == looks[number]
    assert look(folder) == looks[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*STORES, "sealed"])
def test_a_restore_is_exact_whatever_was_there_and_whatever_became_of_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    @given(lists(builds), lists(changes), st.sampled_from(["one object", "cache", "no cache"]))
    def check(built: list[Step], changed: list[Step], habit: str) -> None:
        place = Path(tempfile.mkdtemp(dir=tmp_path))
        (place / "work").mkdir()

        async def run(patch: pytest.MonkeyPatch) -> None:
            made: Checkpointer = make_store("sqlite" if kind == "sealed" else kind, place)
            async with SealedCheckpointer(made, Keyring(bytes(range(32)))) if kind == "sealed" else made as store:
                usage = Habit(habit, place / "work", store, patch)
                await round_trip(usage.workspace, usage.settle, [built, changed])

        try:
            with monkeypatch.context() as patch:
                asyncio.run(run(patch))
        finally:
            remove(os.fsencode(place))

    (check if FULL else seed(f"{SEED} round trips of {kind}")(check))()


@pytest.mark.anyio
@pytest.mark.parametrize("year", [2263, 2300, 2440])
async def test_a_time_beyond_64_bits_of_nanoseconds_keeps_no_snapshot_from_being_restored(
    year: int, tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "file").write_text("of another age")
    (folder / "other").write_text("of ours")
    moment = int((year - 1970) * 365.2425 * 86_400) * 10**9
    os.utime(folder / "file", ns=(moment, moment))
    if (folder / "file").stat().st_mtime_ns != moment:
        pytest.skip("this file system has no such time")
    async with MemoryCheckpointer() as store:
        workspace = Workspace(folder, store)
        await workspace.restore(await workspace.snapshot(), into=tmp_path / "other", setuid=True)
    assert look(tmp_path / "other") == look(folder)
