"""What is MySQL's own: URLs, settings of the server, packets, round trips, crashes, cuts, tables made by many at once."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pytest
from asyncmy import connect
from asyncmy.structs import iB
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import clew.checkpointers
from clew.checkpointers import Checkpointer, HeadQuery, open_checkpointer
from clew.checkpointers.base import MAX_FRAME
from clew.checkpointers.mysql.engine import Engine
from clew.checkpointers.mysql.store import MySQLCheckpointer
from clew.checkpointers.mysql.wire import Connection
from clew.errors import Corrupt, InvalidInput, MissingExtra, NewerFormat, Unavailable
from clew.testing.contract.builders import append, every_call, heads, listed, put, state
from clew.testing.contract.silence import available
from tests.checkpointers.damage import sound_and_damaged
from tests.limits import PATIENCE
from tests.servers.mariadb import PASSWORD, MariaDBServer, running_mariadb
from tests.servers.proxy import Proxy
from tests.servers.running import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.xdist_group("mysql")]


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDBServer]:
    with running_mariadb() as server:
        yield server


@pytest.fixture
def url(server: MariaDBServer) -> str:
    return server.url(prefix=server.new_prefix())


@pytest.fixture
async def store(url: str) -> AsyncIterator[MySQLCheckpointer]:
    async with MySQLCheckpointer(url) as store:
        yield store


# Opening


def test_a_url_opens_it() -> None:
    store = open_checkpointer("mysql://me:secret@db.example:3307/work?prefix=p_", "tenant")
    assert isinstance(store, MySQLCheckpointer)
    assert store.place == "mysql:db.example:3307/work?prefix=p_#tenant"
    assert open_checkpointer("mysql://db.example/work").place == "mysql:db.example:3306/work?prefix=clew_#"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql:work", "not a MySQL URL"),
        ("mysql:///", "one database"),
        ("mysql://me:s3cret@host", "one database"),
        ("mysql://me:s3cret@host/a/b", "one database"),
        ("mysql://me:s3cret@host:port/work", "port"),
        ("mysql://me:s3cret@host:70000/work", "port"),
        ("mysql://me:s3cret@x@host/work", "one @"),
        ("mysql://me:s3cret/x@host/work", "cannot be parsed"),
        ("mysql://me:s3cret#x@host/work", "database|cannot be parsed"),
        ("mysql://me:s3cret@host/work?colour=blue", "no option 'colour'"),
        ("mysql://me:s3cret@host/work?s3cret=blue", "an option is unknown"),
        ("mysql://me:s3cret@host/work?prefix=a&prefix=b", "prefix is given twice"),
        ("mysql://me:s3cret@host/work?prefix=a-b", "table prefix"),
        ("mysql://me:s3cret@host/work?prefix=1a", "table prefix"),
        ("mysql://me:s3cret@host/work?connections=0", "a number from 1 to 1000"),
        ("mysql://me:s3cret@host/work?connections=x", "a number from 1 to 1000"),
        ("mysql://me:s3cret@host/work?ssl=perhaps", "true or false"),
        ("mysql://me:s3cret@host/work?ssl=false&ssl_ca=ca.pem", "ssl=false"),
        ("mysql://me:s3cret@host/%ff", "UTF-8"),
        ("mysql://me:s3cret@host/a%00b", "NUL"),
    ],
)
def test_a_bad_url_is_invalid_and_its_password_is_not_shown(url: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        open_checkpointer(url)
    assert "s3cret" not in str(caught.value)


def test_without_its_driver_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("clew.checkpointers.mysql.")]:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(clew.checkpointers.mysql, name.rpartition(".")[2])
    monkeypatch.setitem(sys.modules, "asyncmy", None)
    with pytest.raises(MissingExtra, match=r"clew\[mysql\]"):
        MySQLCheckpointer("mysql://host/work")


async def test_the_password_shows_nowhere(server: MariaDBServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = server.url().replace("clew:", "clew:wrong", 1)
    async with MySQLCheckpointer(wrong) as store:
        with pytest.raises(Unavailable, match="Check the user and the password") as caught:
            await store.head("thread")
    said = f"{store!r} {store.place} {store._address!r} {caught.value} {caught.value.__cause__!r} {caplog.text}"
    assert PASSWORD not in said
    assert quote(PASSWORD, safe="") not in said


async def test_a_database_that_is_not_there_is_unavailable_and_the_error_says_so(server: MariaDBServer) -> None:
    async with MySQLCheckpointer(f"mysql://root@127.0.0.1:{server.port}/nowhere") as store:
        with pytest.raises(Unavailable, match="CREATE DATABASE"):
            await store.head("thread")


async def test_it_is_reached_through_a_unix_socket(server: MariaDBServer) -> None:
    prefix = server.new_prefix()
    async with (
        MySQLCheckpointer(server.url(socket=True, port=free_port(), prefix=prefix)) as store,
        MySQLCheckpointer(server.url(prefix=prefix)) as other,
    ):
        await append(store, "thread", b"frame")
        assert await other.read("thread") == [b"frame"]


# The tables


async def test_a_store_of_a_newer_clew_is_refused(server: MariaDBServer) -> None:
    prefix = server.new_prefix()
    async with MySQLCheckpointer(server.url(prefix=prefix)) as store:
        await append(store, "thread", b"frame")
    await server.execute(f"UPDATE {prefix}meta SET version = 7")
    async with MySQLCheckpointer(server.url(prefix=prefix)) as store:
        with pytest.raises(NewerFormat, match="version 7"):
            await store.read("thread")


async def test_tables_that_were_made_in_part_are_completed(server: MariaDBServer) -> None:
    prefix = server.new_prefix()
    async with MySQLCheckpointer(server.url(prefix=prefix)) as store:
        await append(store, "thread", b"frame")
    await server.execute(f"DROP TABLE {prefix}meta, {prefix}blobs, {prefix}blob_data")
    async with MySQLCheckpointer(server.url(prefix=prefix)) as store:
        await put(store, b"blob")
        assert await store.read("thread") == [b"frame"]


_OPENER = """
import asyncio, sys
from clew.checkpointers.mysql import MySQLCheckpointer
from clew.testing.contract.builders import append

async def main():
    sys.stdin.readline()
    async with MySQLCheckpointer(sys.argv[1]) as store:
        await append(store, sys.argv[2], b"frame")

asyncio.run(main())
"""


def test_eight_processes_may_make_the_tables_at_once(server: MariaDBServer) -> None:
    url = server.url(prefix=server.new_prefix())
    commands = [[sys.executable, "-c", _OPENER, url, f"thread {n}"] for n in range(8)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for command in commands]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=PATIENCE)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, said

    async def check() -> list[str]:
        async with MySQLCheckpointer(url) as store:
            return await listed(store)

    assert sorted(asyncio.run(check())) == [f"thread {n}" for n in range(8)]


# Round trips


async def test_an_append_is_one_round_trip(store: MySQLCheckpointer, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.head("thread")
    trips = _count_trips(monkeypatch)
    await append(store, "thread", b"one")
    await append(store, "thread", b"two", b"three", at=1)
    await append(store, "thread", at=3, title="its head alone")
    assert len(trips) == 3


async def test_an_append_with_refs_is_two_round_trips(
    store: MySQLCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = await put(store, b"one", b"two")
    trips = _count_trips(monkeypatch)
    await append(store, "thread", b"frame", refs=blobs)
    assert len(trips) == 2


async def test_appends_of_many_tasks_share_transactions(server: MariaDBServer, store: MySQLCheckpointer) -> None:
    await store.head("thread")
    before = await _status(server, "Com_commit")
    await asyncio.gather(*(append(store, f"thread {n}", b"frame") for n in range(100)))
    assert await _status(server, "Com_commit") - before <= 5


async def test_a_short_listing_reads_few_rows(server: MariaDBServer, store: MySQLCheckpointer) -> None:
    moments = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=n % 100) for n in range(500)]
    await asyncio.gather(*(append(store, f"{n}", b"frame", updated_at=moment) for n, moment in enumerate(moments)))
    before = await _status(server, "Handler_read_%")
    first = await heads(store, HeadQuery(limit=10))
    second = await heads(store, HeadQuery(limit=10).after(first[-1]))
    assert len({head.thread_id for head in first + second}) == 20
    assert await _status(server, "Handler_read_%") - before < 100


@pytest.mark.parametrize("order", ["updated", "created"])
async def test_a_page_far_down_a_listing_reads_few_rows(
    server: MariaDBServer, store: MySQLCheckpointer, order: Literal["updated", "created"]
) -> None:
    moments = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=n) for n in range(500)]
    await asyncio.gather(
        *(append(store, f"{n}", b"frame", created_at=when, updated_at=when) for n, when in enumerate(moments))
    )
    above = await heads(store, HeadQuery(order=order, limit=400))
    before = await _status(server, "Handler_read_%")
    page = await heads(store, HeadQuery(order=order, limit=10).after(above[-1]))
    assert [head.thread_id for head in page] == [f"{n}" for n in range(99, 89, -1)]
    assert await _status(server, "Handler_read_%") - before < 100


async def test_the_queue_is_listed_without_a_look_at_other_threads(
    server: MariaDBServer, store: MySQLCheckpointer
) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    await asyncio.gather(*(append(store, f"{n}", b"frame", status="done", updated_at=moment) for n in range(500)))
    for number in range(3):
        await append(store, f"queued {number}", b"frame", due=moment + timedelta(minutes=number))
    for query in (
        HeadQuery(order="due", limit=50),
        HeadQuery(order="due"),
        HeadQuery(order="due", prefix="q", status=("running", "queued"), updated_after=moment, limit=50),
    ):
        before = await _status(server, "Handler_read_%")
        assert [head.thread_id for head in await heads(store, query)] == ["queued 0", "queued 1", "queued 2"]
        assert await _status(server, "Handler_read_%") - before < 20


async def _age(server: MariaDBServer, prefix: str) -> None:
    """Bring the tables of a store back to the version before the queue."""
    await server.execute(f"ALTER TABLE {prefix}heads DROP KEY by_due, DROP COLUMN due")
    await server.execute(f"UPDATE {prefix}meta SET version = 1")


async def test_a_store_of_before_the_queue_gets_one_while_older_processes_write_to_it(server: MariaDBServer) -> None:
    prefix = server.new_prefix()
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    async with MySQLCheckpointer(server.url(), prefix=prefix) as store:
        for number in range(200):
            await append(store, f"{number}", b"frame", status="done")
    await _age(server, prefix)
    writing = True

    async def write() -> None:
        while writing:  # what a process of before sends, as far as it matters here
            await server.execute(f"UPDATE {prefix}heads SET updated = updated + 1, head = head")

    older = asyncio.create_task(write())
    stores = [MySQLCheckpointer(server.url(), prefix=prefix, connections=number) for number in (1, 2, 3)]
    try:
        await asyncio.gather(*(append(store, f"new {n}", b"frame", due=moment) for n, store in enumerate(stores)))
    finally:
        writing = False
        await older
    await append(stores[0], "7", b"more", at=1, due=moment - timedelta(minutes=1))
    found = [head.thread_id for head in await heads(stores[1], HeadQuery(order="due"))]
    assert found[0] == "7"
    assert sorted(found) == ["7", "new 0", "new 1", "new 2"]
    assert await server.execute(f"SELECT version FROM {prefix}meta") == [(2,)]
    for store in stores:
        await store.close()


async def test_an_upgrade_that_has_to_wait_for_another_program_says_so(server: MariaDBServer) -> None:
    prefix = server.new_prefix()
    async with MySQLCheckpointer(server.url(), prefix=prefix) as store:
        await append(store, "thread", b"frame")
    await _age(server, prefix)
    backup = await connect(user="root", unix_socket=str(server.socket), database="clew", autocommit=True)
    async with backup.cursor() as cursor, MySQLCheckpointer(server.url(), prefix=prefix, timeout=30) as store:
        await cursor.execute(f"LOCK TABLES {prefix}heads READ")
        with pytest.raises(Unavailable, match="such as that of a backup"):
            await store.head("thread")
        await cursor.execute("UNLOCK TABLES")
        assert await store.head("thread") is not None
    backup.close()


async def test_an_older_process_that_writes_a_queued_thread_takes_it_out_of_the_queue(server: MariaDBServer) -> None:
    prefix = server.new_prefix()
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    async with MySQLCheckpointer(server.url(), prefix=prefix) as store:
        for thread_id in ("queued", "written"):
            await append(store, thread_id, b"frame", due=moment)
        await append(store, "done", b"frame", status="done")
        await server.execute(
            f"UPDATE {prefix}heads a JOIN {prefix}heads b ON b.thread_id = 'done' SET a.head = b.head "
            "WHERE a.thread_id = 'written'"
        )
        assert [head.thread_id for head in await heads(store, HeadQuery(order="due"))] == ["queued"]


def _count_trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each round trip; what it holds is the number of statements that went together."""
    trips: list[int] = []
    run = Connection.run

    async def counted(self: Connection, *statements: bytes) -> Any:
        trips.append(len(statements))
        return await run(self, *statements)

    monkeypatch.setattr(Connection, "run", counted)
    return trips


async def _status(server: MariaDBServer, name: str) -> int:
    return sum(int(value) for _, value in await server.execute(f"SHOW GLOBAL STATUS LIKE '{name}'"))


# Damage


async def test_a_frame_that_is_gone_is_corrupt_and_never_left_out(server: MariaDBServer) -> None:
    prefix = server.new_prefix()
    async with MySQLCheckpointer(server.url(prefix=prefix)) as store:
        await append(store, "thread", b"one", b"two", b"three")
        await server.execute(f"DELETE FROM {prefix}frames WHERE number = 1")
        with pytest.raises(Corrupt, match=r"'thread'.*lacks frames"):
            await store.read("thread")
        assert await store.read("thread", start=2) == [b"three"]


async def test_a_head_that_was_changed_is_corrupt(server: MariaDBServer) -> None:
    prefix = server.new_prefix()
    async with MySQLCheckpointer(server.url(prefix=prefix)) as store:
        await append(store, "thread", b"one", title="a title")
        await server.execute(f"UPDATE {prefix}heads SET head = REPLACE(head, 'a title', 'a total')")
        with pytest.raises(Corrupt, match="head of thread 'thread'"):
            await store.head("thread")
        with pytest.raises(Corrupt, match="head of thread 'thread'"):
            await heads(store)


@pytest.mark.parametrize("limit", [None, 9])
async def test_sound_threads_are_listed_before_the_damaged_are_named(server: MariaDBServer, limit: int | None) -> None:
    prefix = server.new_prefix()
    async with MySQLCheckpointer(server.url(prefix=prefix)) as store:
        for number in range(4):
            await append(store, f"thread {number}", b"frame")
        await server.execute(f"UPDATE {prefix}heads SET head = '' WHERE thread_id IN ('thread 1', 'thread 2')")
        found, damage = await sound_and_damaged(store, HeadQuery(limit=limit))
        assert found == ["thread 0", "thread 3"]
        assert re.search(r"2 thread\(s\).*'thread [12]'.*'thread [12]'", damage)


async def test_a_blob_that_was_changed_or_lost_a_part_is_corrupt(server: MariaDBServer) -> None:
    prefix = server.new_prefix()
    async with MySQLCheckpointer(server.url(prefix=prefix)) as store:
        small, large = await put(store, b"blob", b"large" * 500_000)
        await server.execute(f"DELETE FROM {prefix}blob_data WHERE part = 1")
        assert await store.get_blobs([small]) == {small: b"blob"}
        with pytest.raises(Corrupt, match=large):
            await store.get_blobs([small, large])
        await server.execute(f"UPDATE {prefix}blob_data SET data = 'blot'")
        with pytest.raises(Corrupt, match=small):
            await store.get_blobs([small])


# A server with other settings


@pytest.fixture(scope="module")
def odd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDBServer]:
    """Quick and not durable, with small packets, and with defaults that change what SQL means."""
    certificate = _certificate(tmp_path_factory.mktemp("tls"))
    settings = {
        "innodb-flush-log-at-trx-commit": "2",
        "log-bin": "binlog",
        "sync-binlog": "0",
        "max-allowed-packet": "4M",
        "character-set-server": "latin1",
        "sql-mode": "NO_BACKSLASH_ESCAPES,ANSI_QUOTES,PIPES_AS_CONCAT",
        "default-time-zone": "+05:30",
        "transaction-isolation": "SERIALIZABLE",
        "ssl-cert": str(certificate),
        "ssl-key": str(certificate),
    }
    with running_mariadb(**settings) as server:
        yield server


async def test_what_it_acknowledges_may_be_lost_and_a_warning_names_the_settings(
    odd_server: MariaDBServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with MySQLCheckpointer(odd_server.url(prefix="w_")) as store:
        await store.head("thread")
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    for setting in ("innodb_flush_log_at_trx_commit = 2", "sync_binlog = 0"):
        assert any(setting in text for text in warned), warned


async def test_a_durable_server_is_not_warned_of(store: MySQLCheckpointer, caplog: pytest.LogCaptureFixture) -> None:
    await store.head("thread")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_bytes_come_back_whatever_the_defaults_of_the_server(odd_server: MariaDBServer) -> None:
    async with MySQLCheckpointer(odd_server.url(prefix="b_")) as store:
        frames = [bytes(range(256)), b"'\\\\'\"\0\x1a\xff%b@", b"\\"]
        [blob] = await put(store, b"".join(frames))
        head = await append(store, "it's \\ \U0001f9f5", *frames, title="%b 'ü'", refs=[blob])
        assert await state(store, "it's \\ \U0001f9f5") == (frames, head, {blob})
        assert await listed(store, title="'Ü'", prefix="it's \\") == ["it's \\ \U0001f9f5"]
        await asyncio.sleep(0.5)
        assert [found async for found in store.blobs(untouched_for=timedelta(seconds=0.25))] == [blob]
        assert [found async for found in store.blobs(untouched_for=timedelta(hours=1))] == []


async def test_a_frame_larger_than_its_packets_is_unavailable_and_the_error_names_the_setting(
    odd_server: MariaDBServer,
) -> None:
    async with MySQLCheckpointer(odd_server.url(prefix="p_")) as store:
        await append(store, "thread", b"small")
        with pytest.raises(Unavailable, match="max_allowed_packet"):
            await append(store, "thread", b"x" * MAX_FRAME, at=1)
        assert await store.read("thread") == [b"small"]


async def test_an_append_and_a_blob_larger_than_its_packets_are_kept(odd_server: MariaDBServer) -> None:
    async with MySQLCheckpointer(odd_server.url(prefix="l_")) as store:
        frames = [random.Random(n).randbytes(2**21) for n in range(8)]
        [blob] = await put(store, b"'" * 6_000_000)
        head = await append(store, "thread", *frames, refs=[blob])
        assert await state(store, "thread") == (frames, head, {blob})
        assert (await store.get_blobs([blob]))[blob] == b"'" * 6_000_000


async def test_tls_is_checked_unless_the_url_says_not_to(odd_server: MariaDBServer, tmp_path: Path) -> None:
    async with MySQLCheckpointer(odd_server.url(prefix="t_", ssl="true")) as store:
        with pytest.raises(Unavailable, match="certificate"):
            await store.head("thread")
    async with MySQLCheckpointer(odd_server.url(prefix="t_", ssl_verify="false")) as store:
        await append(store, "thread", b"frame", b"x" * 100_000)
        assert await store.read("thread", stop=1) == [b"frame"]
    async with MySQLCheckpointer(odd_server.url(prefix="t_", ssl_ca=str(tmp_path / "none"))) as store:
        with pytest.raises(InvalidInput, match="TLS"):
            await store.head("thread")


def _certificate(folder: Path) -> Path:
    """A key and a certificate that nobody vouches for."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    start = datetime(2026, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(start).not_valid_after(start + timedelta(days=36_500))
    certificate = builder.sign(key, hashes.SHA256())
    file = folder / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return file


# Crashes and cuts


async def test_what_was_acknowledged_is_there_once_after_the_server_was_killed_under_load(
    server: MariaDBServer, url: str
) -> None:
    async with MySQLCheckpointer(url) as store:
        writers = [_Writer(store, f"thread {n}") for n in range(16)]
        tasks = [asyncio.create_task(writer.run()) for writer in writers]
        for _ in range(3):
            await asyncio.sleep(0.7)
            server.kill()
            await asyncio.sleep(0.3)
            server.start()
        while not all(writer.written for writer in writers):
            await asyncio.sleep(0.02)
        for writer in writers:
            writer.go_on = False
        await asyncio.gather(*tasks)
    async with MySQLCheckpointer(url) as store:
        for writer in writers:
            assert await store.read(writer.thread_id) == writer.written


async def test_cuts_in_the_middle_of_anything_lose_nothing_and_double_nothing(server: MariaDBServer, url: str) -> None:
    dice = random.Random(7)
    async with Proxy(("127.0.0.1", server.port), cut_after=lambda: dice.randrange(400, 20_000)) as proxy:
        cut_url = url.replace(f":{server.port}/", f":{proxy.port}/")
        async with MySQLCheckpointer(cut_url) as store:
            writers = [_Writer(store, f"thread {n}") for n in range(8)]
            tasks = [asyncio.create_task(writer.run()) for writer in writers]
            while proxy.cuts < 60:
                await asyncio.sleep(0.05)
            for writer in writers:
                writer.go_on = False
            await asyncio.gather(*tasks)
    async with MySQLCheckpointer(url) as store:
        for writer in writers:
            assert await store.read(writer.thread_id) == writer.written


async def test_an_append_whose_sender_is_gone_is_written_whole_or_not_at_all(
    server: MariaDBServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes on with what it was sent, though there is nobody left to answer to."""
    frames = [b"%d" % n for n in range(12)]
    async with MySQLCheckpointer(url) as store:
        await store.head("thread")
        run = Connection.run
        tries = 0

        async def sent_and_gone(self: Connection, *statements: bytes) -> Any:
            nonlocal tries
            tries += len(statements) > 10
            if tries % 2 and len(statements) > 10:
                self._connection._transport.write(iB.pack(len(b";".join(statements)) + 1, 3) + b";".join(statements))
                self._connection._transport.abort()
            return await run(self, *statements)

        monkeypatch.setattr(Connection, "run", sent_and_gone)
        for number in range(40):
            await append(store, f"thread {number % 4}", *frames, at=12 * (number // 4))
            assert len(await store.read(f"thread {number % 4}")) == 12 * (number // 4 + 1)


async def test_a_server_that_was_stopped_and_started_is_a_pause(server: MariaDBServer, url: str) -> None:
    async with MySQLCheckpointer(url, connections=3) as store:
        await asyncio.gather(*(append(store, f"thread {n}", b"frame") for n in range(5)), store.head("thread"))
        server.stop()
        reading = asyncio.create_task(store.read("thread 1"))
        await asyncio.sleep(0.2)
        server.start()
        assert await reading == [b"frame"]
        await append(store, "thread 1", b"more", at=1)


async def test_a_server_that_stays_away_is_unavailable_for_every_call(server: MariaDBServer, url: str) -> None:
    async with (
        Proxy(("127.0.0.1", server.port)) as proxy,
        MySQLCheckpointer(url.replace(f":{server.port}/", f":{proxy.port}/"), timeout=2) as store,
    ):
        await available(lambda: append(store, "thread", b"frame"))
        proxy.refuse = True
        proxy.cut()
        for name, call in every_call(store).items():
            with pytest.raises(Unavailable):
                pytest.fail(f"{name} returned {await call()!r}")
        proxy.refuse = False
        assert await available(lambda: store.read("thread")) == [b"frame"]


class _Writer:
    """Appends to a thread of its own, and makes each call that was `Unavailable` again, as anybody may."""

    def __init__(self, store: Checkpointer, thread_id: str) -> None:
        self.thread_id = thread_id
        self.written: list[bytes] = []
        self.go_on = True
        self._store = store

    async def run(self) -> None:
        blob: list[str] = []
        while self.go_on:
            at = len(self.written)
            frames = [b"%d of %b" % (at + n, self.thread_id.encode()) for n in range(1 + at % 3)]
            if at % 10 == 0:
                blob = await self._persist(lambda: put(self._store, b"of " + self.thread_id.encode()))
            refs = blob if at % 5 == 0 else []
            await self._persist(
                lambda frames=frames, at=at, refs=refs: append(self._store, self.thread_id, *frames, at=at, refs=refs)
            )
            self.written += frames

    async def _persist(self, call: Any) -> Any:
        while True:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(0.05)


# Deletions


@pytest.mark.parametrize("since", ["a frame", "a head", "another log", "nothing"])
async def test_a_deletion_that_comes_late_spares_what_was_written_since(
    store: MySQLCheckpointer, monkeypatch: pytest.MonkeyPatch, since: str
) -> None:
    """A frozen server or network can hold statements back, and run them long after their caller has given them up."""
    await append(store, "thread", b"one")
    late: list[Any] = []

    async def hold(engine: Engine, work: Any) -> None:
        late.append(work)
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
    await store._use().write(late[0])
    assert (await store.head("thread") is None) == (since == "nothing")
    if since != "nothing":
        assert await state(store, "thread") == before


async def test_a_deletion_that_is_sent_again_spares_a_thread_that_was_created_since(
    store: MySQLCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the first sending was lost, so the statements are sent again, and have another log before them."""
    await append(store, "thread", b"one")
    write = Engine.write

    async def again(engine: Engine, work: Any) -> Any:
        with monkeypatch.context() as once:
            once.setattr(Engine, "write", write)
            await write(engine, work)
            await append(store, "thread", b"another", log_id="another")
            return await write(engine, work)

    with monkeypatch.context() as resending:
        resending.setattr(Engine, "write", again)
        await store.delete("thread")
    assert await store.read("thread") == [b"another"]


async def test_a_thread_that_is_written_all_the_time_can_be_deleted(
    store: MySQLCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await append(store, "thread", b"0")
    read, written = Engine.read, 1

    async def overtaken(engine: Engine, statement: bytes) -> Any:
        nonlocal written
        found = await read(engine, statement)
        if statement.startswith(b"SELECT id, head"):
            await append(store, "thread", b"more", at=written)
            written += 1
        return found

    monkeypatch.setattr(Engine, "read", overtaken)
    await store.delete("thread")
    assert await store.head("thread") is None
    assert written > 10
