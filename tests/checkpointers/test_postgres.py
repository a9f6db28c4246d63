"""What is PostgreSQL's own: its URL, its schema, its group commit, and a server that goes away."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from clew.checkpointers import HeadQuery, open_checkpointer
from clew.checkpointers.heads import thread_digest
from clew.checkpointers.postgres.engine import Engine
from clew.checkpointers.postgres.statements import Statements
from clew.checkpointers.postgres.store import PostgresCheckpointer
from clew.checkpointers.postgres.wire import Connection
from clew.checkpointers.sql.heads import with_sum
from clew.errors import Conflict, Corrupt, InvalidInput, NewerFormat, Unavailable
from clew.testing.contract.builders import a_head, append, digest_of, every_call, heads, listed, minute, put, state
from clew.testing.contract.silence import available
from tests.checkpointers.damage import sound_and_damaged
from tests.limits import PATIENCE, processor_time
from tests.servers.postgres import PostgresServer, running_pooler, running_postgres
from tests.servers.proxy import Proxy
from tests.servers.running import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("postgres")]

VERSION_1 = Path(__file__).with_name("postgres_version_1.sql")
"""What the version before the queue sent to make a store in the schema `clew`."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def schema(server: PostgresServer) -> str:
    return server.new_schema()


@pytest.fixture
async def store(server: PostgresServer, schema: str) -> AsyncIterator[PostgresCheckpointer]:
    async with PostgresCheckpointer(server.url(), schema=schema) as store:
        yield store


def apart(server: PostgresServer, schema: str, connections: int) -> PostgresCheckpointer:
    """A checkpointer with connections of its own, as in another process: one store is shared only if all is the same."""
    return PostgresCheckpointer(server.url(), schema=schema, connections=connections)


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The statements that are sent from now on."""
    sent: list[bytes] = []
    start = Connection.start

    def counted(self: Connection, statement: Any, *rest: Any) -> None:
        sent.append(statement.sql)
        start(self, statement, *rest)

    monkeypatch.setattr(Connection, "start", counted)
    return sent


# URLs


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql:host/db", "not a PostgreSQL URL"),
        ("mysql://user:hunter2@host/db", "not a PostgreSQL URL"),
        ("postgresql://user:hunter2@word@host/db", "one @"),
        ("postgresql://user:77/hunter2@host/db", "one @"),
        ("postgresql://user:hunter2/db", "port"),
        ("postgresql://user:x@host:hunter2/db", "port"),
        ("postgresql://user:x@host:70000/db", "port"),
        ("postgresql://user:hunter2%zz@host/db", "malformed"),
        ("postgresql://user:x@host/db?hunter2", "malformed"),
        ("postgresql://user?schema=hunter2:x@host@host/db", "one @"),
        ("postgresql://user:hunter2@host/db?colour=red", "the option 'colour'"),
        ("postgresql://user:hunter2@host/db?schema=a%22b", "schema name"),
        ("postgresql://user:hunter2@host/db?schema=", "schema name"),
        ("postgresql://user:hunter2@host/db?schema=pg_mine", "schema name"),
        ("postgresql://user:hunter2@host/db?schema=a&schema=b", "schema is given twice"),
        ("postgresql://user:hunter2@host/db?connections=0", "connections"),
        ("postgresql://user:hunter2@host/db?connections=many", "connections"),
    ],
)
def test_a_bad_url_is_refused_with_what_is_wrong_and_without_its_password(url: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        PostgresCheckpointer(url)
    assert "ter2" not in str(caught.value)


async def test_a_password_may_hold_what_an_option_is_written_with() -> None:
    store = PostgresCheckpointer("postgresql://user:a?schema=b&c@host/db?schema=mine")
    assert store.place == "postgresql:host/db?schema=mine#"


async def test_a_password_is_in_no_name_no_error_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    url = f"postgresql://somebody:hunter2@127.0.0.1:{free_port()}/db?sslpassword=hunter2"
    async with PostgresCheckpointer(url, "tenant") as store:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1") as caught:
            await store.head("thread")
        shown = [str(caught.value), repr(caught.value), repr(store), store.place, repr(vars(store)), caplog.text]
    assert "hunter2" not in " ".join(shown)
    assert store.place.endswith("/db?schema=clew#tenant")


def test_without_its_driver_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from clew.errors import MissingExtra\n"
        "from clew import open_checkpointer\n"
        "try: open_checkpointer('postgresql://host/db')\n"
        "except MissingExtra as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "pip install 'clew[postgres]'" in said


async def test_a_unix_socket_and_a_port_lead_to_one_store(server: PostgresServer, schema: str) -> None:
    async with open_checkpointer(server.url(local=True, schema=schema)) as store:
        head = await append(store, "thread", b"frame")
    async with open_checkpointer(server.url(schema=schema)) as store:
        assert await store.head("thread") == head


async def test_schemas_share_nothing(server: PostgresServer, store: PostgresCheckpointer) -> None:
    [blob] = await put(store, b"blob")
    await append(store, "thread", b"frame", refs=[blob])
    async with PostgresCheckpointer(server.url(), schema=server.new_schema()) as other:
        assert await state(other, "thread") == ([], None, set())
        assert await other.missing_blobs([blob]) == {blob}


# Making the store


@pytest.mark.slow
async def test_many_processes_make_one_store_at_once(server: PostgresServer, schema: str) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.checkpointers.postgres_opener", server.url(), schema, f"thread {number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(8)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"go\n")
        worker.stdin.flush()
    assert [(worker.communicate()[1], worker.returncode) for worker in workers] == [(b"", 0)] * 8
    async with PostgresCheckpointer(server.url(), schema=schema) as store:
        assert sorted(await listed(store)) == [f"thread {number}" for number in range(8)]
    assert server.execute(f"SELECT version FROM {schema}.clew_meta") == [(2,)]


async def test_a_role_that_may_make_nothing_uses_a_store_that_is_there(server: PostgresServer, schema: str) -> None:
    server.execute(f"CREATE ROLE {schema} LOGIN")
    async with PostgresCheckpointer(server.url(user=schema), schema=schema) as store:
        with pytest.raises(Unavailable, match="Grant this role"):
            await store.head("thread")
    async with PostgresCheckpointer(server.url(), schema=schema) as store:
        await append(store, "made by the owner", b"frame")
    server.execute(f"GRANT USAGE ON SCHEMA {schema} TO {schema}")
    server.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {schema}")
    async with PostgresCheckpointer(server.url(user=schema), schema=schema) as store:
        [blob] = await put(store, b"blob")
        await append(store, "thread", b"frame", refs=[blob])
        await store.delete("made by the owner")
        assert await listed(store) == ["thread"]


async def test_a_store_of_a_newer_clew_is_refused(
    server: PostgresServer, schema: str, store: PostgresCheckpointer
) -> None:
    await append(store, "thread", b"frame")
    server.execute(f"UPDATE {schema}.clew_meta SET version = 99")
    async with apart(server, schema, 2) as late:
        with pytest.raises(NewerFormat, match="99"):
            await late.head("thread")


def old_store(server: PostgresServer, schema: str) -> None:
    """Make a store as the version before the queue made it."""
    made = VERSION_1.read_text().replace('"clew"', f'"{schema}"').replace("hashtext('clew')", f"hashtext('{schema}')")
    server.execute(made)


def old_append(schema: str, thread_id: str, at: int, **fields: Any) -> str:
    """Return the statement with which a process of the version before the queue appends a frame."""
    head = with_sum(msgspec.msgpack.encode(a_head(thread_id, at + 1, **fields)))
    given: list[Any] = [
        b"",
        thread_digest(thread_id),
        b"log-1",
        at,
        thread_id.encode(),
        b"running",
        b"",
        None,
        1,
        1,
        b"",
        b"",
        head,
    ]
    values = [str(one) if isinstance(one, int) else "NULL" if one is None else f"'\\x{one.hex()}'" for one in given]
    return f"SELECT {schema}.clew_append_one({', '.join(values)}, '\\x{b'frame'.hex()}')"


async def test_a_store_of_before_the_queue_gets_one_while_older_processes_write_to_it(
    server: PostgresServer, schema: str
) -> None:
    old_store(server, schema)
    writing, written = True, 0

    def write() -> None:
        nonlocal written
        while writing:
            assert server.execute(old_append(schema, "old", written)) == [(None,)]
            written += 1

    older = asyncio.create_task(asyncio.to_thread(write))
    try:
        while not written:
            await asyncio.sleep(0.01)
        stores = [apart(server, schema, number) for number in range(2, 6)]
        await asyncio.gather(*(store.head("old") for store in stores))
        before = written
        while written < before + 5 and not older.done():
            await asyncio.sleep(0.01)
    finally:
        writing = False
        await older
    for number, store in enumerate(stores):
        await append(store, f"new {number}", b"frame", due=minute(-number))
    assert await listed(stores[0], order="due") == ["new 3", "new 2", "new 1", "new 0"]
    assert await stores[0].read("old") == [b"frame"] * written
    assert server.execute(f"SELECT version FROM {schema}.clew_meta") == [(2,)]
    for store in stores:
        await store.close()


async def test_an_older_process_that_writes_a_queued_thread_takes_it_out_of_the_queue(
    server: PostgresServer, schema: str
) -> None:
    old_store(server, schema)
    async with apart(server, schema, 2) as store:
        for thread_id in ("queued", "written"):
            await append(store, thread_id, b"frame", due=minute(1))
        assert server.execute(old_append(schema, "written", 1)) == [(None,)]
        assert await listed(store, order="due") == ["queued"]
        assert server.execute(f"SELECT count(due) FROM {schema}.clew_heads") == [(1,)]


async def test_an_upgraded_store_has_the_tables_and_functions_of_a_new_one(server: PostgresServer, schema: str) -> None:
    old_store(server, f"{schema}_old")
    for name in (schema, f"{schema}_old"):
        async with PostgresCheckpointer(server.url(), schema=name) as store:
            await store.head("thread")

    def parts(name: str) -> set[Any]:
        columns = (
            f"SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = '{name}'"
        )
        indexes = f"SELECT tablename, replace(indexdef, '{name}.', '') FROM pg_indexes WHERE schemaname = '{name}'"
        functions = (
            "SELECT pg_get_function_identity_arguments(oid), prosrc "
            f"FROM pg_proc WHERE pronamespace = '{name}'::regnamespace AND prosrc NOT LIKE '%NULL::bigint%'"
        )
        found = {row for query in (columns, indexes, functions) for row in server.execute(query)}
        return {tuple(str(value).replace(f'"{name}"', "") for value in row) for row in found}

    assert parts(schema) == parts(f"{schema}_old")


async def test_an_upgrade_that_has_to_wait_for_another_program_says_so(server: PostgresServer, schema: str) -> None:
    old_store(server, schema)
    with psycopg.connect(server.url()) as backup, backup.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {schema}.clew_heads IN ACCESS SHARE MODE")
        async with apart(server, schema, 2) as store:
            with pytest.raises(Unavailable, match="locked, such as a backup"):
                await store.head("thread")
            backup.rollback()
            assert await store.head("thread") is None


async def test_tables_of_another_program_are_left_alone(server: PostgresServer, schema: str) -> None:
    server.execute(f"CREATE SCHEMA {schema}")
    server.execute(f"CREATE TABLE {schema}.clew_heads (theirs integer)")
    async with PostgresCheckpointer(server.url(), schema=schema) as store:
        with pytest.raises(InvalidInput, match="schema of its own"):
            await append(store, "thread", b"frame")
    assert server.execute(f"SELECT count(*) FROM {schema}.clew_heads") == [(0,)]


async def test_a_store_dropped_while_it_is_open_is_unavailable_and_never_absent(
    server: PostgresServer, schema: str, store: PostgresCheckpointer
) -> None:
    await append(store, "thread", b"frame")
    server.execute(f"DROP SCHEMA {schema} CASCADE")
    for name, call in every_call(store).items():
        with pytest.raises(Unavailable, match="gone"):
            pytest.fail(f"{name} returned {await call()!r}")


# Durable


async def test_every_write_waits_for_the_disk_whatever_the_servers_default(server: PostgresServer, schema: str) -> None:
    """A trigger at the end of each transaction notes the setting that its commit will use."""
    role = f"careless_{schema}"
    server.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    server.execute(f"ALTER ROLE {role} SET synchronous_commit = off")
    async with PostgresCheckpointer(server.url(user=role), schema=schema) as store:
        await append(store, "thread", b"frame")
        server.execute(f"CREATE TABLE {schema}.seen (name text, setting text)")
        server.execute(
            f"CREATE FUNCTION {schema}.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO {schema}.seen "
            "VALUES (TG_TABLE_NAME || ' ' || TG_OP, current_setting('synchronous_commit')); RETURN NULL; END $$"
        )
        for table in ("clew_heads", "clew_frames", "clew_refs", "clew_blobs"):
            server.execute(
                f"CREATE CONSTRAINT TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {schema}.{table} "
                f"DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {schema}.note()"
            )
        await append(store, "thread", b"frame", at=1)
        await append(store, "thread", at=2)
        [blob] = await put(store, b"blob")
        await store.missing_blobs([blob])
        await append(store, "thread", b"one", b"two", at=2, refs=[blob])
        await asyncio.gather(*(append(store, f"thread {n}", b"frame") for n in range(5)))
        await store.delete("thread")
        await store.delete_blobs([blob], untouched_for=timedelta(0))
    seen = server.execute(f"SELECT DISTINCT name, setting FROM {schema}.seen")
    assert {setting for _, setting in seen} == {"on"}
    assert {name for name, _ in seen} >= {
        *(f"clew_{table} {what}" for table in ("heads", "frames", "refs", "blobs") for what in ("INSERT", "DELETE")),
        *("clew_heads UPDATE", "clew_blobs UPDATE"),
    }


async def test_a_server_that_does_not_sync_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with running_postgres(fsync="off") as server:
        async with PostgresCheckpointer(server.url()) as store:
            await asyncio.gather(*(append(store, f"thread {number}", b"frame") for number in range(20)))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "fsync = off" in warnings[0]


# One round trip, many together


async def test_an_append_is_one_statement(store: PostgresCheckpointer, statements: list[bytes]) -> None:
    [blob] = await put(store, b"blob")
    statements.clear()
    await append(store, "thread", b"one")
    await append(store, "thread", b"two", b"three", at=1, refs=[blob])
    await append(store, "thread", b"four", at=3)
    await append(store, "thread", b"four", at=3)
    await append(store, "thread", at=4)
    with pytest.raises(Conflict):
        await append(store, "thread", b"late", at=1)
    assert len(statements) == 6


async def test_appends_made_at_once_share_a_statement(store: PostgresCheckpointer, statements: list[bytes]) -> None:
    await append(store, "first", b"frame")
    statements.clear()
    await asyncio.gather(*(append(store, f"thread {number}", b"frame") for number in range(60)))
    assert len(statements) <= 3
    assert len(await listed(store)) == 61


async def test_appends_of_one_thread_keep_their_order_though_none_is_awaited(store: PostgresCheckpointer) -> None:
    await asyncio.gather(*(append(store, "thread", b"%d" % at, at=at) for at in range(30)))
    assert await store.read("thread") == [b"%d" % at for at in range(30)]


async def test_a_pooler_may_give_each_transaction_another_connection(server: PostgresServer, schema: str) -> None:
    with running_pooler(server) as port:
        stores = [
            PostgresCheckpointer(server.url(port=port), schema=schema, connections=number) for number in (6, 7, 8)
        ]
        blobs = await put(stores[0], *(b"%d" % number for number in range(40)))

        async def work(number: int) -> None:
            for at in range(10):
                store = stores[(number + at) % 3]
                await append(store, f"thread {number}", b"%d" % at, at=at, refs=blobs[number : number + at % 2])
                assert len(await store.read(f"thread {number}")) == at + 1
                assert await store.refs(f"thread {number}") == set(blobs[number : number + min(1, at)])

        await asyncio.gather(*(work(number) for number in range(40)))
        assert len(await listed(stores[0])) == 40
        for store in stores:
            for call in every_call(store).values():
                await call()
            await store.close()


async def test_two_processes_that_write_the_same_threads_never_wait_for_each_other(
    server: PostgresServer, schema: str
) -> None:
    stores = [apart(server, schema, number) for number in (2, 3, 4)]
    blobs = await put(stores[0], *(b"%d" % number for number in range(20)))
    dice = random.Random(1)
    unexpected: list[BaseException] = []

    async def one(number: int) -> None:
        thread_id = f"thread {dice.randrange(10)}"
        store = stores[number % 3]
        head = await store.head(thread_id)
        at = head.frames if head else 0
        try:
            await append(store, thread_id, b"%d" % number, at=at, refs=dice.sample(blobs, 3))
        except Conflict:
            return
        except Unavailable as error:
            unexpected.append(error)

    for start in range(0, 600, 60):
        await asyncio.gather(*(one(number) for number in range(start, start + 60)))
    assert unexpected == []
    assert server.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'") == [(0,)]
    for store in stores:
        await store.close()


async def test_another_isolation_level_as_the_default_changes_nothing(server: PostgresServer, schema: str) -> None:
    role = f"strict_{schema}"
    server.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    server.execute(f"ALTER ROLE {role} SET default_transaction_isolation = 'serializable'")
    stores = [PostgresCheckpointer(server.url(user=role), schema=schema, connections=number) for number in (1, 2, 3)]
    for at in range(10):
        results = await asyncio.gather(
            *(append(store, "thread", b"%d" % number, at=at) for number, store in enumerate(stores)),
            return_exceptions=True,
        )
        assert sorted(type(result).__name__ for result in results) == ["Conflict", "Conflict", "Head"]
    for store in stores:
        await store.close()


# Size and listing


async def test_heads_are_changed_in_place(server: PostgresServer, schema: str, store: PostgresCheckpointer) -> None:
    """Within one bucket of time no index is touched: the table and its indexes stay as they are, however long the log."""
    await append(store, "thread", b"frame")
    for at in range(1, 300):
        await append(store, "thread", b"frame", at=at, updated_at=minute(0) + timedelta(seconds=at / 10))
    sizes = f"SELECT pg_relation_size('{schema}.clew_heads'), pg_indexes_size('{schema}.clew_heads')"
    [[table, indexes]] = server.execute(sizes)
    assert (table, indexes) == (8192, 4 * 16384 + 2 * 8192)


async def test_a_short_listing_of_many_threads_reads_few_of_them(
    server: PostgresServer, schema: str, store: PostgresCheckpointer
) -> None:
    await append(store, "thread", b"frame", due=minute(1))
    columns = "frames, ns, log_id, status, agent, title, tags, head"
    server.execute(
        f"INSERT INTO {schema}.clew_heads (created, updated, key, thread_id, {columns}) "
        f"SELECT n::bigint * 1000000, n::bigint * 1000000, sha256(n::text::bytea), n::text::bytea, {columns} "
        f"FROM {schema}.clew_heads, generate_series(1, 50000) n"
    )
    queued = HeadQuery(order="due", limit=50)
    for query in (HeadQuery(limit=10), HeadQuery(limit=10, order="created"), HeadQuery(limit=10, prefix="4711"), queued,
                  HeadQuery(order="due", agent="", tags={"a": "b"}, updated_after=minute(-9))):  # fmt: skip
        if query is queued:
            assert len(await heads(store, query)) == 1  # also before the server has counted its rows
            server.execute(f"ANALYZE {schema}.clew_heads")
        statement, values = Statements(schema).listing(b"", query)
        sql = statement.sql.decode()
        for place, value in reversed(list(enumerate(values, start=1))):
            number = statement.types is not None and statement.types[place - 1] == 20
            sql = sql.replace(f"${place}", str(int.from_bytes(value)) if number else f"'\\x{value.hex()}'::bytea")
        [[plan]] = server.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")
        assert "Seq Scan" not in str(plan)
        assert _rows_read(plan[0]["Plan"]) < 1000


def _rows_read(plan: dict[str, Any]) -> float:
    return max([float(plan["Actual Rows"]), *map(_rows_read, plan.get("Plans", []))])


async def test_long_listings_come_whole_and_in_order(store: PostgresCheckpointer) -> None:
    made = await asyncio.gather(
        *(append(store, f"{number}", b"frame", updated_at=minute(number % 700)) for number in range(1300))
    )
    query = HeadQuery()
    expected = sorted(made, key=query.position, reverse=True)
    assert await heads(store) == expected
    assert await heads(store, HeadQuery(limit=900)) == expected[:900]


async def test_long_logs_come_whole_in_pages(store: PostgresCheckpointer, statements: list[bytes]) -> None:
    frames = [b"%d" % number for number in range(30_000)]
    for at in range(0, len(frames), 10_000):
        await append(store, "thread", *frames[at : at + 10_000], at=at)
    statements.clear()
    assert await store.read("thread") == frames
    assert await store.read("thread", start=5, stop=29_999) == frames[5:29_999]
    assert len(statements) > 4


# Damage


async def test_a_damaged_head_is_corrupt(server: PostgresServer, schema: str, store: PostgresCheckpointer) -> None:
    await append(store, "thread", b"frame")
    for damage in ("set_byte(head, 3, get_byte(head, 3) # 255)", "''", "substr(head, 1, 20)"):
        server.execute(f"UPDATE {schema}.clew_heads SET head = {damage}")
        with pytest.raises(Corrupt, match="thread"):
            await store.head("thread")
        with pytest.raises(Corrupt, match="'thread'"):
            await listed(store)


@pytest.mark.parametrize("limit", [None, 9])
async def test_sound_threads_are_listed_before_the_damaged_are_named(
    server: PostgresServer, schema: str, store: PostgresCheckpointer, limit: int | None
) -> None:
    for number in range(4):
        await append(store, f"thread {number}", b"frame")
    server.execute(f"UPDATE {schema}.clew_heads SET head = '' WHERE thread_id IN ('thread 1', 'thread 2')")
    found, damage = await sound_and_damaged(store, HeadQuery(limit=limit))
    assert found == ["thread 0", "thread 3"]
    assert re.search(r"2 thread\(s\).*'thread [12]'.*'thread [12]'", damage)


async def test_a_frame_missing_in_the_middle_is_corrupt(
    server: PostgresServer, schema: str, store: PostgresCheckpointer
) -> None:
    await append(store, "thread", b"one", b"two", b"three")
    server.execute(f"DELETE FROM {schema}.clew_frames WHERE number = 1")
    with pytest.raises(Corrupt, match="lacks frames"):
        await store.read("thread")
    assert await store.read("thread", start=2) == [b"three"]


async def test_a_changed_blob_is_corrupt(server: PostgresServer, schema: str, store: PostgresCheckpointer) -> None:
    [blob] = await put(store, b"blob")
    server.execute(f"UPDATE {schema}.clew_blobs SET data = 'glob'")
    with pytest.raises(Corrupt, match=blob):
        await store.get_blobs([blob])


# A server that goes away


async def test_a_connection_that_was_ended_while_idle_is_replaced_unseen(
    server: PostgresServer, store: PostgresCheckpointer
) -> None:
    for at in range(3):
        await append(store, "thread", b"frame", at=at)
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'clew'")
    assert len(await store.read("thread")) == 3


async def test_a_statement_without_an_answer_is_unavailable_and_may_be_made_again(
    server: PostgresServer, schema: str, store: PostgresCheckpointer
) -> None:
    await append(store, "thread", b"one")
    async with PostgresCheckpointer(server.url(timeout="0.3"), schema=schema) as hasty:
        await available(lambda: hasty.head("thread"))
        with psycopg.connect(server.url()) as other:
            other.execute(f"LOCK TABLE {schema}.clew_heads")
            with pytest.raises(Unavailable, match="no answer"):
                await append(hasty, "thread", b"two", at=1)
            with pytest.raises(Unavailable, match="no answer"):
                await hasty.head("thread")
        await available(lambda: append(hasty, "thread", b"two", at=1))
    assert await store.read("thread") == [b"one", b"two"]


@pytest.mark.parametrize("since", ["a frame", "a head", "another log", "nothing"])
async def test_a_deletion_that_comes_late_spares_what_was_written_since(
    store: PostgresCheckpointer, monkeypatch: pytest.MonkeyPatch, since: str
) -> None:
    """A frozen server or network can hold a statement back, and run it long after its caller has given it up."""
    await append(store, "thread", b"one")
    late: list[tuple[Any, ...]] = []

    async def hold(engine: Engine, *given: Any) -> None:
        late.append(given)
        raise Unavailable("no answer")

    with monkeypatch.context() as held:
        held.setattr(Engine, "write", hold)
        with pytest.raises(Unavailable):
            await store.delete("thread")
    match since:
        case "a frame":
            await append(store, "thread", b"two", at=1)
        case "a head":
            await append(store, "thread", at=1, title="renewed")
        case "another log":
            await store.delete("thread")
            await append(store, "thread", b"one", log_id="another")
    before = await state(store, "thread")
    await store._use().write(*late[0])
    assert (await store.head("thread") is None) == (since == "nothing")
    if since != "nothing":
        assert await state(store, "thread") == before


async def test_a_deletion_that_is_sent_again_spares_a_thread_that_was_created_since(
    store: PostgresCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the first sending was lost, so the statement is sent again, and has another log before it by then."""
    await append(store, "thread", b"one")
    write = Engine.write

    async def again(engine: Engine, *given: Any) -> Any:
        with monkeypatch.context() as once:
            once.setattr(Engine, "write", write)
            await write(engine, *given)
            await append(store, "thread", b"another", log_id="another")
            return await write(engine, *given)

    with monkeypatch.context() as resending:
        resending.setattr(Engine, "write", again)
        await store.delete("thread")
    assert await store.read("thread") == [b"another"]


async def test_a_thread_that_is_written_all_the_time_can_be_deleted(
    store: PostgresCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await append(store, "thread", b"0")
    read, written = Engine.read, 1

    async def overtaken(engine: Engine, statement: Any, *values: Any) -> Any:
        nonlocal written
        found = await read(engine, statement, *values)
        if statement == store._statements.version:
            await append(store, "thread", b"more", at=written)
            written += 1
        return found

    monkeypatch.setattr(Engine, "read", overtaken)
    await store.delete("thread")
    assert await store.head("thread") is None
    assert written > 10


async def test_a_server_that_takes_no_writes_is_unavailable(server: PostgresServer, schema: str) -> None:
    async with PostgresCheckpointer(server.url(), schema=schema) as store:
        await append(store, "thread", b"one")
    role = f"standby_{schema}"
    server.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    server.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    async with PostgresCheckpointer(server.url(user=role), schema=schema) as store:
        assert await store.read("thread") == [b"one"]
        with pytest.raises(Unavailable, match="standby"):
            await append(store, "thread", b"two", at=1)


async def appending(
    store: PostgresCheckpointer, name: str, acknowledged: list[bytes], until: Callable[[], bool]
) -> None:
    """Append as a careful caller does: after Unavailable the same again."""
    while not until():
        frame = b"%s %d" % (name.encode(), len(acknowledged))
        try:
            await append(store, name, frame, at=len(acknowledged), log_id=name)
        except Unavailable:
            await asyncio.sleep(0.02)
        else:
            acknowledged.append(frame)


async def gathered(work: Awaitable[object], seconds: float = PATIENCE) -> None:
    await asyncio.wait_for(work, seconds)


async def test_a_killed_server_loses_nothing_that_was_acknowledged() -> None:
    with running_postgres() as server:
        async with PostgresCheckpointer(server.url()) as store:
            kept: dict[str, list[bytes]] = {f"thread {number}": [] for number in range(16)}
            over = False
            tasks = [
                asyncio.create_task(appending(store, name, acknowledged, lambda: over))
                for name, acknowledged in kept.items()
            ]
            for _ in range(3):
                await asyncio.sleep(0.3)
                before = sum(map(len, kept.values()))
                server.kill()
                server.start()
                while sum(map(len, kept.values())) < before + 64:
                    await asyncio.sleep(0.01)
            over = True
            await gathered(asyncio.gather(*tasks))
        async with PostgresCheckpointer(server.url()) as store:
            for name, acknowledged in kept.items():
                assert await store.read(name) == acknowledged
                head = await store.head(name)
                assert head is not None
                assert head.frames == len(acknowledged)


async def test_a_restart_is_a_pause_and_no_error(server: PostgresServer, store: PostgresCheckpointer) -> None:
    await append(store, "thread", b"one")
    server.stop()
    call = asyncio.create_task(append(store, "thread", b"two", at=1))
    reading = asyncio.create_task(store.read("thread", stop=1))
    await asyncio.sleep(0.1)
    server.start()
    await call
    assert await reading == [b"one"]
    assert await store.read("thread") == [b"one", b"two"]


async def test_an_outage_is_unavailable_and_its_end_is_noticed(server: PostgresServer, schema: str) -> None:
    async with PostgresCheckpointer(server.url(), schema=schema, timeout=2) as store:
        await available(lambda: append(store, "thread", b"one"))
        server.stop()
        for name, call in every_call(store).items():
            with pytest.raises(Unavailable):
                pytest.fail(f"{name} returned {await call()!r}")
        server.start()
        assert await available(lambda: store.read("thread")) == [b"one"]


@pytest.mark.parametrize("count", [2, 20])
async def test_calls_at_once_end_when_the_server_stays_away(server: PostgresServer, schema: str, count: int) -> None:
    """Several connections are tried at the same time. When one fails, the others are waited for and no more are begun, so
    that all calls fail together and nothing is busy meanwhile."""
    async with PostgresCheckpointer(server.url(), schema=schema, timeout=2) as store:
        await available(lambda: append(store, "thread", b"one"))
        server.stop()
        try:
            with processor_time(1):
                calls = [store.head("thread") for _ in range(count)]
                results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE)
        finally:
            server.start()
        assert {type(result) for result in results} == {Unavailable}
        assert await available(lambda: store.read("thread")) == [b"one"]


async def test_connections_cut_anywhere_lose_nothing_and_write_nothing_twice(
    server: PostgresServer, schema: str
) -> None:
    dice = random.Random(7)
    async with apart(server, schema, 1) as store:
        await append(store, "made before", b"frame")
    async with Proxy(("127.0.0.1", server.port), cut_after=lambda: dice.randrange(200, 30_000)) as proxy:
        async with PostgresCheckpointer(server.url(port=proxy.port), schema=schema) as store:
            kept: dict[str, list[bytes]] = {f"thread {number}": [] for number in range(8)}
            work = (
                appending(store, name, acknowledged, lambda acknowledged=acknowledged: len(acknowledged) >= 60)  # type: ignore[misc]
                for name, acknowledged in kept.items()
            )
            await gathered(asyncio.gather(*work))
            for name, acknowledged in kept.items():
                while True:
                    try:
                        assert await store.read(name) == acknowledged
                        break
                    except Unavailable:
                        continue
        assert proxy.cuts > 5
    async with apart(server, schema, 1) as store:
        for name, acknowledged in kept.items():
            assert await store.read(name) == acknowledged


async def test_a_cut_between_the_commit_and_its_answer_is_healed_unseen(server: PostgresServer, schema: str) -> None:
    """The answer never arrives; the same append is sent again and found to be there."""
    async with Proxy(("127.0.0.1", server.port)) as proxy:
        async with PostgresCheckpointer(server.url(port=proxy.port), schema=schema) as store:
            await append(store, "thread", b"frame")
            for at in range(1, 20):
                call = asyncio.create_task(append(store, "thread", b"%d" % at, at=at))
                for _ in range(at % 7):
                    await asyncio.sleep(0)
                while not proxy.is_carrying:
                    await asyncio.sleep(0)
                proxy.cut()
                await call
            assert await store.read("thread") == [b"frame", *(b"%d" % at for at in range(1, 20))]
        assert proxy.cuts >= 19


async def test_blobs_survive_a_kill_once_acknowledged() -> None:
    with running_postgres() as server:
        async with PostgresCheckpointer(server.url()) as store:
            blobs = [bytes([number]) * 100_000 for number in range(20)]
            await put(store, *blobs)
            server.kill()
            server.start()
            found = await store.get_blobs([digest_of(blob) for blob in blobs])
        assert found == {digest_of(blob): blob for blob in blobs}
