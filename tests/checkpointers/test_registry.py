"""From a URL to a checkpointer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from clew import open_checkpointer
from clew._runtime import plugins as _plugins
from clew.checkpointers import FileCheckpointer, MemoryCheckpointer, SQLiteCheckpointer, registry
from clew.errors import InvalidInput, MissingExtra
from clew.testing.contract.builders import append

Plugins = Callable[..., None]


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Plugins:
    """Installs these entry points, `name = value`."""

    def install(**values: str) -> None:
        found = [EntryPoint(name, value, registry.GROUP) for name, value in values.items()]

        def entry_points(*, group: str) -> list[EntryPoint]:
            return found if group == registry.GROUP else []

        monkeypatch.setattr(_plugins, "entry_points", entry_points)

    return install


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("memory://", MemoryCheckpointer),
        ("sqlite:///clew.db", SQLiteCheckpointer),
        ("SQLite:///clew.db", SQLiteCheckpointer),
        ("file:folder", FileCheckpointer),
        ("file:///tmp/folder", FileCheckpointer),
    ],
)
def test_a_url_opens_the_store_of_its_scheme_and_touches_nothing(
    url: str, kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert type(open_checkpointer(url)) is kind
    assert list(tmp_path.iterdir()) == []


@pytest.mark.anyio
async def test_a_namespace_goes_to_the_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    async with open_checkpointer(url, "mine") as mine, open_checkpointer(url, namespace="theirs") as theirs:
        head = await append(mine, "thread", b"frame")
        assert await theirs.head("thread") is None
        assert await mine.head("thread") == head


@pytest.mark.parametrize("url", ["memory://", "sqlite:///clew.db", "file:folder"])
def test_a_bad_namespace_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidInput, match="namespace"):
        open_checkpointer(url, "a\0b")


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("clew.db", "sqlite:///clew.db"),
        ("/var/lib/clew.db", "sqlite:////var/lib/clew.db"),
        ("", "sqlite:///clew.db"),
        ("://clew.db", "sqlite:///"),
        ("sqlite://clew.db", "sqlite:///relative.db"),
        ("memory:///here", "memory://"),
        ("memory:", "memory://"),
        ("sqllite:///clew.db", "Did you mean sqlite:?"),
        ("memmory://", "Did you mean memory:?"),
        ("files:folder", "Did you mean file:?"),
        ("mongodb://server", "Known here: az, file, gs, http, https, memory, mysql,"),
    ],
)
def test_a_url_that_names_no_store_is_refused_with_the_way_out(plugins: Plugins, url: str, advice: str) -> None:
    plugins()
    with pytest.raises(InvalidInput) as caught:
        open_checkpointer(url)
    assert advice in str(caught.value)


@pytest.mark.parametrize("url", ["unknown://user:password@server/db", "sqllite://user:password@server/db"])
def test_a_refused_url_does_not_show_its_password(plugins: Plugins, url: str) -> None:
    plugins()
    with pytest.raises(InvalidInput) as caught:
        open_checkpointer(url)
    assert "password" not in str(caught.value)


# The default store


def test_the_environment_names_the_default_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_STORE", "memory://")
    assert isinstance(open_checkpointer(), MemoryCheckpointer)


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="XDG folders are for Linux")
@pytest.mark.parametrize("store", [None, ""])
def test_the_default_store_is_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str | None
) -> None:
    monkeypatch.delenv("CLEW_STORE", raising=False)
    if store is not None:
        monkeypatch.setenv("CLEW_STORE", store)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert registry.default_url() == f"sqlite:///{tmp_path}/data/clew/clew.db"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert registry.default_url() == f"sqlite:///{tmp_path}/home/.local/share/clew/clew.db"


@pytest.mark.anyio
@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="XDG folders are for Linux")
async def test_the_default_store_is_made_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLEW_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    async with open_checkpointer() as store:
        await append(store, "thread", b"frame")
    assert (tmp_path / "data" / "clew" / "clew.db").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "data" / "clew").stat().st_mode & 0o777 == 0o700


# Plug-ins


def test_an_installed_package_adds_a_scheme(plugins: Plugins, monkeypatch: pytest.MonkeyPatch) -> None:
    class Cloud(MemoryCheckpointer):
        opened: tuple[str, str] = "", ""

        @classmethod
        def from_url(cls, url: str, namespace: str = "") -> Cloud:
            cls.opened = url, namespace
            return cls(namespace)

    package = ModuleType("clew_cloud")
    package.Cloud = Cloud  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "clew_cloud", package)
    plugins(cloud="clew_cloud:Cloud")
    assert isinstance(open_checkpointer("cloud://bucket/path", "mine"), Cloud)
    assert Cloud.opened == ("cloud://bucket/path", "mine")
    with pytest.raises(InvalidInput, match="Did you mean cloud:"):
        open_checkpointer("clowd://bucket")


def test_an_installed_package_does_not_replace_a_built_in_store(plugins: Plugins) -> None:
    plugins(memory="clew_absent:Other")
    assert isinstance(open_checkpointer("memory://"), MemoryCheckpointer)


def test_a_store_whose_extra_is_not_installed_says_how_to_install_it(plugins: Plugins) -> None:
    plugins(mongodb="clew_no_such_package:Store")
    with pytest.raises(MissingExtra) as caught:
        open_checkpointer("mongodb://server/db")
    assert "pip install 'clew[mongodb]'" in str(caught.value)
    assert isinstance(caught.value, ImportError)
    assert caught.value.extra == "mongodb"
