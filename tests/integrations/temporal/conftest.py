"""One Temporal for all tests, and the stores that workers share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.postgres import running_postgres
from tests.servers.temporal import a_temporal


@pytest.fixture(scope="session")
def temporal() -> Iterator[str]:
    """The address of a server."""
    with tempfile.TemporaryDirectory() as folder, a_temporal(Path(folder)) as address:
        yield address


@pytest.fixture(scope="session")
def hasty() -> Iterator[str]:
    """The address of a server that suggests to continue as new after few events."""
    with (
        tempfile.TemporaryDirectory() as folder,
        a_temporal(Path(folder), limit__historyCount__suggestContinueAsNew=20) as address,
    ):
        yield address


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    """The URL of a store in SQLite."""
    return f"sqlite:///{tmp_path}/clew.db"


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a store that several machines could share, of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/clew.db"
        return
    with running_postgres() as server:
        yield server.url()
