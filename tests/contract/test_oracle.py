"""The contract against a real Oracle Database, where `CLEW_TEST_ORACLE_URL` names one: a user who may make tables."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from functools import partial
from uuid import uuid4

import oracledb
import pytest

from clew.checkpointers import Checkpointer
from clew.checkpointers.oracle import address
from clew.checkpointers.oracle.store import OracleCheckpointer
from tests.servers.running import free_port
from tests.stores import NewStore, StoreContract

URL = os.environ.get("CLEW_TEST_ORACLE_URL", "")
if not URL:
    pytest.skip(
        "no Oracle server: set CLEW_TEST_ORACLE_URL=oracle://user:password@host:1521/service", allow_module_level=True
    )
_TABLES = ("heads", "frames", "refs", "blobs")


@pytest.fixture(scope="module")
def prefix() -> Iterator[str]:
    """Of tables that only this run has."""
    prefix = f"t{uuid4().hex[:8]}_"
    yield prefix
    asyncio.run(_each_table(prefix, "DROP TABLE {} PURGE", (*_TABLES, "meta")))


@pytest.mark.xdist_group("oracle")
class TestOracle(StoreContract):
    @pytest.fixture
    async def new_store(self, prefix: str) -> NewStore:
        await _each_table(prefix, "DELETE FROM {}", _TABLES)
        return partial(OracleCheckpointer, URL, prefix=prefix)

    @pytest.fixture
    async def unreachable_store(self) -> AsyncIterator[Checkpointer]:
        store = OracleCheckpointer(f"oracle://clew:password@127.0.0.1:{free_port()}/nowhere")
        yield store
        await store.close()


async def _each_table(prefix: str, statement: str, tables: tuple[str, ...]) -> None:
    settings = address.parse(URL, prefix, 1, None).settings
    given = {name: value for name, value in settings.items() if name not in ("min", "max", "increment")}
    async with oracledb.connect_async(**given) as connection:
        for table in tables:
            try:
                await connection.execute(statement.format(prefix + table))
            except oracledb.DatabaseError as error:
                if error.args[0].full_code != "ORA-00942":
                    raise
        await connection.commit()
