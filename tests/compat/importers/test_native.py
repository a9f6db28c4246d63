"""The sessions of coding agents, as files: on this machine or from another."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from clew import Thread
from clew.checkpointers import MemoryCheckpointer
from clew.compat.importers import import_all, open_source
from clew.errors import Corrupt, InvalidInput
from clew.messages import Text, ToolCall, ToolResult, assistant, plain_text, tool, user
from clew.providers import Conversation, Place, find_provider
from clew.workspace import Workspace

pytestmark = pytest.mark.anyio

SAID = (
    user("Paint the door."),
    assistant(Text("Gladly."), ToolCall("c1", "Bash", {"command": "paint"})),
    tool(ToolResult("c1", (Text("painted"),))),
    assistant("It is painted."),
)


class Home:
    """A home folder with a session of each of two programs."""

    def __init__(self, root: Path) -> None:
        self.path = root / "home"
        self.env = {"HOME": str(self.path), "PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(root / "cache")}
        self.place = Place(root, self.env)
        self.keys = {name: self.keep(name) for name in ("claude_code", "codex")}

    def keep(self, name: str, key: str = "", messages: int = 4) -> str:
        """Write a session where the program keeps it, and return its key."""
        provider = find_provider(name)(self.place)
        key = key or provider.new_key()
        folder = self.path.parent / f"{name}-{key}-{messages}"
        folder.mkdir(parents=True)
        provider.write(Conversation(messages=SAID[:messages], cwd="/home/me/door", title="The door"), key, folder)
        provider.install_session(key, folder)
        return key

    def file(self, name: str) -> Path:
        (found,) = (path for path in self.path.rglob("*.jsonl") if self.keys[name] in path.name)
        return found

    def contents(self) -> dict[str, bytes | int]:
        return {
            str(path): path.read_bytes() if path.is_file() else path.stat().st_mtime_ns
            for path in sorted(self.path.rglob("*"))
        }


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


async def test_a_home_folder_has_the_sessions_of_all_programs(home: Home) -> None:
    before = home.contents()
    async with MemoryCheckpointer() as store:
        with open_source("native", home.path) as source:
            assert sorted(source.keys()) == [f"{name}:{key}" for name, key in home.keys.items()]
            done = await import_all(source, store)
            assert (await import_all(source, store)).skipped == done.ids
        assert (sorted(done.ids), done.failed) == ([f"{name}:{key}" for name, key in home.keys.items()], {})
        for name, key in home.keys.items():
            state = await Thread.load(store, f"{name}:{key}")
            assert [plain_text(message) for message in state.messages if plain_text(message)] == [
                "Paint the door.",
                "Gladly.",
                "It is painted.",
            ]
            assert (state.agent, state.status, state.title) == (
                name,
                "done",
                "The door" if name == "x" else state.title,
            )
            assert state.limits == {"provider": name, "cwd": "/home/me/door"}
            kept = state.providers[name]
            assert (kept.key, kept.messages, bool(kept.native)) == (key, 4, True)
            assert state.tags["imported_key"] == f"{name}:{key}"
    assert home.contents() == before


@pytest.mark.parametrize(
    ("inside", "name"),
    [
        (".claude", "claude_code"),
        (".claude/projects", "claude_code"),
        (".codex", "codex"),
        (".codex/sessions", "codex"),
    ],
)
def test_a_folder_of_one_program_has_its_sessions(inside: str, name: str, home: Home) -> None:
    with open_source("native", home.path / inside) as source:
        assert source.keys() == [f"{name}:{home.keys[name]}"]


@pytest.mark.parametrize("name", ["claude_code", "codex"])
def test_a_file_is_one_session_wherever_it_lies(name: str, home: Home, tmp_path: Path) -> None:
    home.keep(name)
    elsewhere = tmp_path / "elsewhere.jsonl"
    shutil.copyfile(home.file(name), elsewhere)
    read = []
    for path in (home.file(name), elsewhere):
        with open_source("native", path) as source:
            assert source.keys() == [f"{name}:{home.keys[name]}"]
            read.append(source.read(source.keys()[0]).entries)
    assert read[0] == read[1]


@pytest.mark.parametrize("name", ["claude_code", "codex"])
async def test_a_thread_grows_with_its_session(name: str, tmp_path: Path) -> None:
    home = Home(tmp_path)
    shutil.rmtree(home.path)
    key = home.keep(name, messages=3)
    async with MemoryCheckpointer() as store:
        with open_source("native", home.path) as source:
            await import_all(source, store)
        before = (await Thread.load(store, f"{name}:{key}")).providers[name]
        home.keep(name, key, messages=4)
        with open_source("native", home.path) as source:
            done = await import_all(source, store)
        assert (done.updated, done.failed) == ((f"{name}:{key}",), {})
        state = await Thread.load(store, f"{name}:{key}")
        assert plain_text(state.messages[-1]) == "It is painted."
        assert state.providers[name].native != before.native
        assert state.providers[name].messages == 4
        assert (await Thread.verify(store, f"{name}:{key}")).sound


async def test_the_files_of_the_program_come_with_the_thread(home: Home, tmp_path: Path) -> None:
    """On another machine the program gets its own session, and not one made from the messages."""
    async with MemoryCheckpointer() as store:
        with open_source("native", home.path / ".codex") as source:
            (thread_id,) = (await import_all(source, store)).ids
        state = await Thread.load(store, thread_id)
        await Workspace(tmp_path / "there", store).restore(state.providers["codex"].native)
        assert (tmp_path / "there" / "rollout.jsonl").read_bytes() == home.file("codex").read_bytes()


def test_a_damaged_session_does_not_hide_the_others(home: Home) -> None:
    other = home.keep("codex")
    home.file("codex").write_bytes(b'{"type": "session_meta", "payload": {"id": "x"}}\n')
    with open_source("native", home.path / ".codex") as source:
        assert f"codex:{other}" in source.keys()  # noqa: SIM118 - a source is no dict
        assert source.read(f"codex:{other}").thread_id == f"codex:{other}"


async def test_a_database_that_is_not_of_opencode_is_reported_beside_the_rest(home: Home) -> None:
    folder = home.path / ".local" / "share" / "opencode"
    folder.mkdir(parents=True)
    with closing(sqlite3.connect(folder / "opencode.db")) as other, other:
        other.execute("CREATE TABLE session (id)")
    async with MemoryCheckpointer() as store:
        with open_source("native", home.path) as source:
            done = await import_all(source, store)
            with pytest.raises(Corrupt):
                source.read("opencode")
    assert (len(done.ids), [*done.failed]) == (2, ["opencode"])
    assert "opencode.db" in done.failed["opencode"]


def strange(folder: Path) -> Iterator[tuple[Path, str]]:
    yield folder / "nowhere", "no such file or folder"
    (folder / "empty").mkdir()
    yield folder / "empty", "Looked for a home folder"
    (folder / "projects" / "mine").mkdir(parents=True)
    yield folder, "has no sessions of coding agents"
    (folder / "notes.txt").write_text("Hello.")
    yield folder / "notes.txt", "has no sessions of coding agents"
    (folder / "other.jsonl").write_text('{"type":"user"}\n')
    yield folder / "other.jsonl", "has no sessions of coding agents"
    (folder / "evil.jsonl").write_text('{"type":"session_meta","payload":{"id":"../../evil"}}\n')
    yield folder / "evil.jsonl", "has no sessions of coding agents"


def test_what_is_no_place_of_sessions_is_refused(tmp_path: Path) -> None:
    for path, said in strange(tmp_path):
        with pytest.raises(InvalidInput, match=said):
            open_source("native", path)
