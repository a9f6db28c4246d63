"""What is Oracle's own, as far as it shows without a server: URLs, the dialect, and the calls of its driver.

The statements are parsed and held against the tables they use. The calls are recorded by a double of python-oracledb, whose
methods are held against those of the real one. `tests/contract/test_oracle.py` is the proof, where there is a server.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import struct
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import oracledb
import pytest
import sqlglot
from oracledb.errors import _Error
from sqlglot import exp

from clew.checkpointers import HeadQuery, open_checkpointer
from clew.checkpointers.oracle.sql import VERSION, Statements
from clew.checkpointers.oracle.store import OracleCheckpointer
from clew.errors import Conflict, Corrupt, InvalidInput, MissingBlob, MissingExtra, NewerFormat, Unavailable
from clew.testing.contract.builders import EPOCH, a_head, append, digest_of, every_call, heads, minute, put
from tests.clock import Clock
from tests.limits import PATIENCE
from tests.servers.running import free_port

pytestmark = pytest.mark.anyio

URL = "oracle://me:s3cret@db.example/work"
SQL = Statements("clew_")
BLOCKS = {"append": SQL.append, "touch": SQL.touch, "delete": SQL.delete, "put": SQL.put, "sweep": SQL.sweep}
QUERIES = [
    HeadQuery(),
    HeadQuery(prefix="a", status=("done", "failed"), agent="x", parent="p", limit=3, order="created"),
    HeadQuery(updated_after=EPOCH, updated_before=EPOCH, title="t", tags={"a": "b"}, limit=3),
    HeadQuery(status=(), limit=0).after(a_head("thread")),
    HeadQuery(order="due", prefix="a", limit=50).after(a_head("thread", due=EPOCH)),
]
PLAIN = [SQL.version, SQL.read, SQL.head, SQL.refs, SQL.untouched, SQL.heads(3), SQL.blobs(3)]
PLAIN += [SQL.listed_keys(b"space", query)[0] for query in QUERIES]


# Opening


def test_a_url_opens_it_and_its_settings_go_to_the_driver() -> None:
    store = open_checkpointer("oracle://me:p%40ss@db.example:1522/work?prefix=P_&connections=3", "tenant")
    assert isinstance(store, OracleCheckpointer)
    assert store.place == "oracle:db.example:1522/work?prefix=p_#tenant"
    settings = store._address.settings
    assert (settings["user"], settings["password"], settings["max"]) == ("me", "p@ss", 3)
    assert (settings["host"], settings["port"], settings["service_name"]) == ("db.example", 1522, "work")
    inspect.signature(oracledb.create_pool_async).bind(**settings)


def test_a_wallet_and_an_alias_stand_for_host_and_service() -> None:
    url = "oracle://me:s3cret@/?dsn=work_high&config_dir=/wallet&wallet_location=/wallet&wallet_password=w4llet"
    store = OracleCheckpointer(url)
    settings = store._address.settings
    assert (settings["dsn"], settings["config_dir"], settings["wallet_password"]) == ("work_high", "/wallet", "w4llet")
    inspect.signature(oracledb.create_pool_async).bind(**settings)
    shown = f"{store!r} {store.place} {store._address!r}"
    assert "work_high" in shown
    assert "s3cret" not in shown
    assert "w4llet" not in shown


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("oracle:work", "not an Oracle URL"),
        ("oracle://me:s3cret@host", "one service"),
        ("oracle://me:s3cret@/work", "one service"),
        ("oracle://me:s3cret@host/a/b", "one service"),
        ("oracle://me:s3cret@host:x/work", "port"),
        ("oracle://me:s3cret@x@host/work", "one @"),
        ("oracle://me:s3cret@host/work?dsn=alias", "not both"),
        ("oracle://me:s3cret@host/work?colour=blue", "no option 'colour'"),
        ("oracle://me:s3cret@host/work?prefix=a&prefix=b", "prefix is given twice"),
        ("oracle://me:s3cret@host/work?prefix=abcdefghijklm", "table prefix"),
        ("oracle://me:s3cret@host/work?connections=0", "a number from 1 to 1000"),
        ("oracle://me:s3cret@host/work?protocol=http", "tcp or tcps"),
        ("oracle://me:s3cret@host/work?ssl_server_dn_match=perhaps", "true or false"),
    ],
)
def test_a_bad_url_is_invalid_and_its_password_is_not_shown(url: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        open_checkpointer(url)
    assert "s3cret" not in str(caught.value)


def test_without_its_driver_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "oracledb", None)
    with pytest.raises(MissingExtra, match=r"clew\[oracle\]"):
        OracleCheckpointer(URL)


async def test_a_server_out_of_reach_is_unavailable_and_never_absent() -> None:
    async with OracleCheckpointer(f"oracle://me:s3cret@127.0.0.1:{free_port()}/work") as store:
        for name, call in every_call(store).items():
            with pytest.raises(Unavailable) as caught:
                pytest.fail(f"{name} returned {await call()!r}")
            assert "s3cret" not in f"{caught.value} {caught.value.__cause__!r}"


# The dialect


@pytest.mark.parametrize("statement", [*SQL.definitions, *PLAIN])
def test_a_statement_is_oracle_sql_and_names_columns_that_exist(statement: str) -> None:
    _check_columns(_parsed(statement))


@pytest.mark.parametrize("name", BLOCKS)
def test_the_sql_inside_a_block_is_oracle_sql_and_names_columns_that_exist(name: str) -> None:
    found = list(_sql_inside(BLOCKS[name]))
    assert found
    for statement in found:
        _check_columns(_parsed(statement))


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_closed_and_declares_what_it_uses(name: str) -> None:
    block = BLOCKS[name]
    words = re.findall(r"\b(?:END IF|END LOOP|IF|LOOP|BEGIN|CASE|END)\b", block)
    assert words.count("IF") == words.count("END IF")
    assert words.count("LOOP") == words.count("END LOOP")
    assert words.count("BEGIN") + words.count("CASE") == words.count("END")
    declared = re.findall(r"^    (v_\w+) [A-Z]", block.partition("BEGIN")[0], re.MULTILINE)
    assert set(re.findall(r"\bv_\w+", block)) == set(declared)
    assert block.endswith("END;")


@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_that_writes_waits_for_the_disk(name: str) -> None:
    commits = re.findall(r"COMMIT[^;]*;", BLOCKS[name])
    assert commits == ["COMMIT WRITE IMMEDIATE WAIT;"]


def _parsed(statement: str) -> exp.Expression:
    [parsed] = sqlglot.parse(statement, read="oracle")
    assert isinstance(parsed, (exp.Select, exp.Insert, exp.Update, exp.Delete, exp.Create)), statement
    return parsed


def _sql_inside(block: str) -> Iterator[str]:
    """The SQL of a block, with binds in place of variables and without what only PL/SQL has."""
    code = re.sub(r"\b(?:v_\w+|i)\b", ":v", block.partition("BEGIN")[2])
    for part in code.split(";"):
        if start := re.search(r"\b(?:SELECT|INSERT INTO|UPDATE|DELETE FROM)\b", part):
            sql = part[start.start() :]
            sql = re.sub(r"\bRETURNING \w+ INTO :v", "", sql)
            yield re.sub(r"\bINTO :v(?:, :v)*", "", sql)


def _columns() -> dict[str, set[str]]:
    tables: dict[str, set[str]] = {"dual": set()}
    for definition in map(_parsed, SQL.definitions):
        if isinstance(definition, exp.Create) and definition.kind == "TABLE":
            name = definition.this.this.name
            tables[name] = {column.name for column in definition.find_all(exp.ColumnDef)}
    return tables


_NOT_COLUMNS = {"systimestamp"}


def _check_columns(statement: exp.Expression) -> None:
    tables = _columns()
    named = {table.name for table in statement.find_all(exp.Table)}
    assert named <= tables.keys(), statement
    known = set().union(*(tables[name] for name in named))
    used = {column.name for column in statement.find_all(exp.Column)}
    if isinstance(statement, exp.Insert):
        used |= {column.name for column in statement.this.expressions}
    assert {name for name in used if name.lower() not in _NOT_COLUMNS} <= known, statement.sql("oracle")


# The driver's double


class Var:
    def __init__(self) -> None:
        self.value: Any = None

    def getvalue(self, pos: int = 0) -> Any:
        return self.value


class Cursor:
    arraysize = 100

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rows: list[tuple[Any, ...]] = []
        self.outputtypehandler: Any = None

    def var(self, typ: Any, size: int = 0, arraysize: int = 1) -> Var:
        return Var()

    async def execute(self, statement: str, parameters: dict[str, Any] | None = None) -> None:
        self._rows = self._database.run(statement, parameters or {})

    async def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        return None


class Connection:
    call_timeout = 0

    def __init__(self, database: Database) -> None:
        self._database = database

    def cursor(self) -> Cursor:
        return Cursor(self._database)

    async def createlob(self, lob_type: Any, data: bytes) -> tuple[str, bytes]:
        assert lob_type is oracledb.DB_TYPE_BLOB
        return ("lob", data)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._database.released += 1


class Pool:
    def __init__(self, database: Database) -> None:
        self._database = database

    def acquire(self) -> Connection:
        self._database.acquired += 1
        return Connection(self._database)

    async def close(self, force: bool = False) -> None:
        self._database.closed = True
        if self._database.is_silent:
            await asyncio.Event().wait()


Answer = Callable[[dict[str, Any]], list[tuple[Any, ...]]]


class Database:
    """Records what it is asked, and answers from a script: for each statement what to do with its binds."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.script: dict[str, list[Answer]] = {}
        self.acquired = self.released = 0
        self.closed = False
        self.is_silent = False

    def run(self, statement: str, binds: dict[str, Any]) -> list[tuple[Any, ...]]:
        used = set(re.findall(r":(b_\w+)", statement))
        assert used == binds.keys(), f"binds that differ from the statement: {used ^ binds.keys()}"
        self.asked.append((statement, binds))
        if answers := self.script.get(statement):
            return (answers.pop(0) if len(answers) > 1 else answers[0])(binds)
        return [(VERSION,)] if statement == SQL.version else []

    def count(self, statement: str) -> int:
        return sum(asked == statement for asked, _ in self.asked)


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    database = Database()

    def create_pool_async(**settings: Any) -> Pool:
        inspect.signature(_create_pool_async).bind(**settings)
        return Pool(database)

    monkeypatch.setattr(oracledb, "create_pool_async", create_pool_async)
    return database


_create_pool_async = oracledb.create_pool_async


def _says(**outs: Any) -> Answer:
    """A block that ran, and set its variables to this."""

    def answer(binds: dict[str, Any]) -> list[tuple[Any, ...]]:
        assert {name for name, value in binds.items() if isinstance(value, Var)} == outs.keys()
        for name, value in outs.items():
            binds[name].value = value
        return []

    return answer


def _fails(code: str) -> Answer:
    def answer(binds: dict[str, Any]) -> list[tuple[Any, ...]]:
        error = _Error(f"{code}: it failed s3cretly\nHelp: somewhere")
        raise oracledb.DatabaseError(error)

    return answer


WRITTEN = _says(b_done=1, b_ends=0, b_same=1, b_missing=None)


@pytest.mark.parametrize(
    ("double", "real"),
    [
        (Var, oracledb.Var),
        (Cursor, oracledb.AsyncCursor),
        (Connection, oracledb.AsyncConnection),
        (Pool, oracledb.AsyncConnectionPool),
    ],
)
def test_the_double_has_the_methods_of_the_driver(double: type, real: type) -> None:
    for name, method in vars(double).items():
        assert name == "__init__" or name.startswith("__") or hasattr(real, name), name
        if not inspect.isfunction(method) or name in ("__init__", "__aexit__"):
            continue
        theirs = inspect.signature(getattr(real, name)).parameters
        assert list(inspect.signature(method).parameters) == [
            n for n in theirs if n in inspect.signature(method).parameters
        ]
        assert inspect.iscoroutinefunction(method) == inspect.iscoroutinefunction(getattr(real, name)), name


async def test_an_append_is_one_block(database: Database) -> None:
    database.script[SQL.append] = [WRITTEN]
    async with OracleCheckpointer(URL) as store:
        await append(store, "thread", b"one", b"", agent="planner", parent=("up", 2))
        await append(store, "thread", at=2)
    assert [statement for statement, _ in database.asked] == [SQL.version, SQL.append, SQL.append]
    first, second = database.asked[1][1], database.asked[2][1]
    assert first["b_data"] == struct.pack(">i", 3) + b"one" + struct.pack(">i", 0)
    assert (first["b_at"], first["b_count"], first["b_thread_id"], first["b_status"]) == (0, 2, b"thread", "running")
    assert (second["b_at"], second["b_count"], second["b_data"], second["b_parent"]) == (2, 0, b"", None)
    assert database.acquired == database.released == 2
    assert database.closed


async def test_closing_ends_although_the_server_is_silent(
    database: Database, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    store = OracleCheckpointer(URL)
    await store.head("thread")
    database.is_silent = True
    closing = asyncio.ensure_future(store.close())
    await clock.advance_when(lambda: database.closed, 11.0)
    await asyncio.wait_for(closing, PATIENCE)
    assert "no answer for 10 s" in caplog.text


async def test_more_than_plsql_takes_as_a_value_goes_through_a_lob(database: Database) -> None:
    database.script[SQL.append] = [WRITTEN]
    async with OracleCheckpointer(URL) as store:
        await append(store, "thread", b"x" * 40_000)
    assert database.asked[-1][1]["b_data"] == ("lob", struct.pack(">i", 40_000) + b"x" * 40_000)


@pytest.mark.parametrize(
    ("said", "error", "match"),
    [
        ({"b_ends": None, "b_same": 0, "b_missing": None}, Conflict, "does not exist"),
        ({"b_ends": 7, "b_same": 1, "b_missing": None}, Conflict, "ends at frame 7, not 3"),
        ({"b_ends": 3, "b_same": 0, "b_missing": None}, Conflict, "another log"),
        ({"b_ends": 3, "b_same": 1, "b_missing": bytes.fromhex(digest_of(b"b"))}, MissingBlob, digest_of(b"b")),
        ({"b_ends": 3, "b_same": 1, "b_missing": None}, Corrupt, "without a reason"),
    ],
)
async def test_an_append_that_was_refused_says_why(
    database: Database, said: dict[str, Any], error: type[Exception], match: str
) -> None:
    database.script[SQL.append] = [_says(b_done=0, **said)]
    async with OracleCheckpointer(URL) as store:
        with pytest.raises(error, match=match):
            await append(store, "thread", b"frame", at=3, refs=[digest_of(b"b")])
    assert database.asked[-1][1]["b_refs"] == bytes.fromhex(digest_of(b"b"))


@pytest.mark.parametrize("code", ["DPY-4011", "ORA-00060", "ORA-00001"])
async def test_a_call_whose_connection_broke_or_that_met_another_is_made_once_more(
    database: Database, code: str
) -> None:
    database.script[SQL.append] = [_fails(code), WRITTEN, _fails(code)]
    async with OracleCheckpointer(URL) as store:
        await append(store, "thread", b"frame")
        assert database.count(SQL.append) == 2
        with pytest.raises(Unavailable, match=code):
            await append(store, "thread", b"frame", at=1)
        assert database.count(SQL.append) == 4


async def test_what_the_server_refuses_is_unavailable_and_what_it_finds_damaged_is_corrupt(database: Database) -> None:
    async with OracleCheckpointer(URL) as store:
        database.script[SQL.head] = [_fails("ORA-01017")]
        with pytest.raises(Unavailable, match="Check the user and the password"):
            await store.head("thread")
        database.script[SQL.head] = [_fails("ORA-01578")]
        with pytest.raises(Corrupt, match="restore a copy"):
            await store.head("thread")
    assert database.count(SQL.head) == 2


async def test_the_tables_are_made_once_and_by_whoever_is_first(database: Database) -> None:
    database.script[SQL.version] = [_fails("ORA-00942"), lambda binds: [(VERSION,)]]
    async with OracleCheckpointer(URL) as store:
        await asyncio.gather(store.head("a"), store.head("b"))
        await store.head("c")
    made = [statement for statement, _ in database.asked if "EXECUTE IMMEDIATE" in statement]
    assert [re.findall(r"'(.*)'", text, re.DOTALL)[0] for text in made] == list(SQL.definitions)
    assert all("SQLCODE NOT IN (-1, -955, -1408, -1430)" in text for text in made)


async def test_a_store_of_before_the_queue_gets_one(database: Database) -> None:
    database.script[SQL.version] = [lambda binds: [(1,)], lambda binds: [(VERSION,)]]
    async with OracleCheckpointer(URL) as store:
        await asyncio.gather(store.head("a"), store.head("b"))
    made = [statement for statement, _ in database.asked if "EXECUTE IMMEDIATE" in statement]
    assert [re.findall(r"'(.*)'", text, re.DOTALL)[0] for text in made] == list(SQL.upgrades)
    assert "ADD (due NUMBER(19))" in SQL.upgrades[1]


def test_the_queue_is_read_from_its_own_index_and_nothing_else_is() -> None:
    for query in (HeadQuery(order="due", limit=50), HeadQuery(order="due", prefix="a", updated_after=EPOCH)):
        sql, binds = SQL.listed_keys(b"space", query)
        assert "INDEX_DESC(clew_heads clew_heads_due)" in sql
        assert "due <= :b_never" in sql
        assert binds["b_never"] == 2**62
        assert "ORDER BY due DESC, thread_key DESC" in sql
    assert "due" not in SQL.listed_keys(b"space", HeadQuery())[0]


async def test_a_store_of_a_newer_clew_is_refused(database: Database) -> None:
    database.script[SQL.version] = [lambda binds: [(7,)]]
    async with OracleCheckpointer(URL) as store:
        with pytest.raises(NewerFormat, match="version 7"):
            await store.head("thread")


async def test_frames_are_read_in_pages_and_a_gap_is_corrupt(database: Database) -> None:
    rows = [(1, b"log", 300, pos, b"%d" % pos or None) for pos in range(300)]
    database.script[SQL.read] = [lambda binds: [row for row in rows if binds["b_first"] <= row[3] < binds["b_last"]]]
    async with OracleCheckpointer(URL) as store:
        assert await store.read("thread") == [b"%d" % pos for pos in range(300)]
        assert database.count(SQL.read) == 2
        rows[5] = (1, b"log", 300, 5, None)
        assert (await store.read("thread"))[4:7] == [b"4", b"", b"6"]
        del rows[290]
        with pytest.raises(Corrupt, match="lacks frames"):
            await store.read("thread")


async def test_a_listing_is_decided_by_sql_and_titles_and_tags_here(database: Database) -> None:
    sent: list[dict[str, Any]] = []
    async with OracleCheckpointer(URL) as store:
        database.script[SQL.append] = [lambda binds: sent.append(dict(binds)) or WRITTEN(binds)]  # type: ignore[func-returns-value]
        for number in range(3):
            title = "odd" if number % 2 else "even"
            await append(store, f"thread {number}", b"frame", title=title, updated_at=minute(-number))
        rows = {binds["b_key"]: (binds["b_head"], binds["b_thread_id"]) for binds in sent}
        query = HeadQuery(title="EVEN", limit=5)
        database.script[SQL.listed_keys(b"", query)[0]] = [lambda binds: [(key,) for key in rows]]
        database.script[SQL.heads(3)] = [lambda binds: [(key, *row) for key, row in rows.items()]]
        assert [head.thread_id for head in await heads(store, query)] == ["thread 0", "thread 2"]


async def test_blobs_are_put_touched_listed_and_swept_in_order(database: Database) -> None:
    async with OracleCheckpointer(URL) as store:
        digests = sorted(await put(store, b"one", b""))
        assert [binds["b_digest"].hex() for asked, binds in database.asked if asked == SQL.put] == digests
        database.script[SQL.touch] = [_says(b_missing=bytes.fromhex(digests[1]))]
        assert await store.missing_blobs(digests[::-1]) == {digests[1]}
        assert database.asked[-1][1]["b_refs"].hex() == "".join(digests)
        database.script[SQL.untouched] = [lambda binds: [(bytes.fromhex(digests[0]),)], lambda binds: []]
        assert [found async for found in store.blobs(untouched_for=timedelta(seconds=1))] == digests[:1]
        assert database.asked[-1][1]["b_grace"] == 1_000_000
        await store.delete_blobs(digests, untouched_for=timedelta(0))
        assert database.asked[-1][0] == SQL.sweep
        database.script[SQL.blobs(2)] = [
            lambda binds: [(binds["b_k0"], b"one" if binds["b_k0"].hex() == digest_of(b"one") else None)]
        ]
        found = await store.get_blobs(digests)
        assert found == {digests[0]: b"one" if digests[0] == digest_of(b"one") else b""}


async def test_a_cancelled_append_settles_before_the_cancellation_goes_on(database: Database) -> None:
    database.script[SQL.append] = [WRITTEN]
    async with OracleCheckpointer(URL) as store:
        task = asyncio.create_task(append(store, "thread", b"frame"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert database.count(SQL.append) == 1
