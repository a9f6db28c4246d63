"""The factories with Locus' names, on the real servers: the document's test on each."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from clew.compat.locus import Agent, AgentState, Message
from clew.compat.locus.memory import BaseCheckpointer
from clew.compat.locus.memory.backends import (
    HTTPCheckpointer,
    OCIBucketBackend,
    mysql_checkpointer,
    oci_bucket_checkpointer,
    opensearch_checkpointer,
    oracle_checkpointer,
    postgresql_checkpointer,
    redis_checkpointer,
    s3_checkpointer,
)
from clew.errors import InvalidInput, Unavailable, UsageError
from clew.messages import plain_text
from clew.testing import ScriptedModel
from tests.server.test_command import clew_serve, running
from tests.servers.mariadb import PASSWORD, MariaDBServer, running_mariadb
from tests.servers.oci_objects import BUCKET, TENANCY, OCIDouble, oci_double
from tests.servers.opensearch import shared_node
from tests.servers.postgres import running_postgres
from tests.servers.redis import DURABLE, a_server
from tests.servers.running import free_port, lacking
from tests.servers.seaweedfs import BUCKET as S3_BUCKET
from tests.servers.seaweedfs import KEY_ID, SECRET, seaweedfs

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning:oci")]

_numbers = count()


async def holds_the_document(checkpointer: BaseCheckpointer, other: BaseCheckpointer) -> None:
    """The test of Locus' page, and what a checkpointer does besides. `other` is a second connection to the same data."""
    agent1 = Agent(model=ScriptedModel(["Hello, Alex.", "You are Alex."]), checkpointer=checkpointer)
    await agent1.run("I'm Alex.", thread_id="t1").__anext__()
    del agent1
    model = ScriptedModel(["Hello, Alex.", "You are Alex."])
    await Agent(model=model, checkpointer=other).run("Who am I?", thread_id="t1").__anext__()
    assert [plain_text(message) for message in model.requests[0].messages] == ["I'm Alex.", "Hello, Alex.", "Who am I?"]

    assert await checkpointer.list_checkpoints("t1") == ["turn-2", "turn-1"]
    state = AgentState(messages=(Message.user("To Rome!"), Message.assistant("Gladly.")), confidence=0.5)
    name = await checkpointer.save(state, "t2", metadata={"city": "Rome"})
    assert await other.load("t2", name) == state
    assert [found["thread_id"] for found in await other.query_by_metadata("city", "Rome")] == ["t2"]
    assert await checkpointer.copy_thread("t2", "t3")
    assert sorted(await other.list_threads()) == ["t1", "t2", "t3"]
    assert await checkpointer.delete("t3")
    assert await other.load("t3") is None
    assert await other.vacuum(older_than_days=0) == 2
    assert await checkpointer.list_threads() == []


@pytest.mark.xdist_group("redis")
async def test_redis(tmp_path: Path) -> None:
    with a_server("valkey", tmp_path, *DURABLE) as server:
        kept = redis_checkpointer(server.url, prefix="mine:", db=0)
        async with kept, redis_checkpointer(server.url, "mine:") as other:
            assert not kept.capabilities.ttl
            await holds_the_document(kept, other)
        async with redis_checkpointer(server.url, "short:", ttl_seconds=3600) as expiring:
            assert expiring.capabilities.ttl
            await expiring.save(AgentState(messages=(Message.user("Hi."),)), "t")
            assert await expiring.load("t") is not None


async def test_postgresql() -> None:
    with running_postgres() as server:
        async with (
            postgresql_checkpointer(dsn=server.url()) as kept,
            postgresql_checkpointer("127.0.0.1", server.port, "postgres", "postgres", "unused") as other,
        ):
            await holds_the_document(kept, other)


@pytest.fixture
def mariadb() -> Iterator[MariaDBServer]:
    with running_mariadb() as server:
        yield server


async def test_mysql(mariadb: MariaDBServer) -> None:
    async with (
        mysql_checkpointer("127.0.0.1", mariadb.port, "clew", "clew", PASSWORD, max_pool_size=2) as kept,
        mysql_checkpointer(dsn=mariadb.url()) as other,
    ):
        await holds_the_document(kept, other)


async def test_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with seaweedfs(tmp_path) as server:
        place: dict[str, Any] = {"endpoint_url": server.endpoint, "region": "us-east-1"}
        async with s3_checkpointer(S3_BUCKET, **place) as kept, s3_checkpointer(S3_BUCKET, "clew/", **place) as other:
            await holds_the_document(kept, other)


@pytest.mark.xdist_group("opensearch")
async def test_opensearch() -> None:
    host = urlsplit(shared_node().url).netloc
    name = f"locus-{next(_numbers)}"
    async with (
        opensearch_checkpointer(hosts=[host], index_name=name, use_ssl=False) as kept,
        opensearch_checkpointer(hosts=[f"http://{host}"], index_name=name, use_ssl=False) as other,
    ):
        await holds_the_document(kept, other)


async def test_http_to_a_process_of_clew_serve(tmp_path: Path) -> None:
    made = clew_serve("--new-token", "--namespace", "team")
    secret = made.stderr.splitlines()[0].split(": ")[1]
    tokens = tmp_path / "tokens.jsonl"
    tokens.write_text(made.stdout)
    with running("--store", f"sqlite:///{tmp_path}/served.db", "--token-file", str(tokens)) as (url, _):
        headers = {"Authorization": f"Bearer {secret}"}
        async with HTTPCheckpointer(base_url=url, headers=headers) as kept, HTTPCheckpointer(url, headers) as other:
            assert await kept.health_check()
            await holds_the_document(kept, other)
        async with HTTPCheckpointer(url, {"Authorization": "Bearer wrong"}) as stranger:
            with pytest.raises(UsageError, match="no token"):
                await stranger.health_check()
            with pytest.raises(UsageError, match="no token"):
                await stranger.load("t1")
    async with HTTPCheckpointer(url, headers, timeout=5) as gone:
        assert not await gone.health_check()
        with pytest.raises(Unavailable):
            await gone.load("t1")


@pytest.fixture
def double(tmp_path: Path) -> Iterator[OCIDouble]:
    if find_spec("oci") is None:
        lacking("no SDK of OCI", install="the extra oci")
    with oci_double(tmp_path) as double:
        yield double


async def test_oci_object_storage(double: OCIDouble) -> None:
    async with (
        OCIBucketBackend(bucket_name=BUCKET, namespace=TENANCY, **double.options) as kept,
        oci_bucket_checkpointer(BUCKET, TENANCY, "clew/", **double.options) as other,
    ):
        await holds_the_document(kept, other)
        assert {name.partition("/")[0] for name in double.objects} <= {"clew"}


def test_options_of_oci_that_are_not_there_are_errors(double: OCIDouble) -> None:
    with pytest.raises(InvalidInput, match="auth_type is one of api_key, instance_principal, resource_principal"):
        OCIBucketBackend(BUCKET, TENANCY, auth_type="security_token", **double.options)
    with pytest.raises(InvalidInput, match="Clew makes no buckets"):
        OCIBucketBackend(BUCKET, TENANCY, compartment_id="ocid1", **double.options)


async def test_oracle_goes_to_the_store_of_that_name() -> None:
    """No Oracle is to be had: the address is all that shows here."""
    port = free_port()
    for dsn in (f"127.0.0.1:{port}/work", "work_high"):
        kept = oracle_checkpointer(dsn=dsn, user="admin", password="s3cret/@", config_dir=None)
        assert dsn in repr(kept)
        assert "s3cret" not in repr(kept)
        await kept.close()
    wallet = oracle_checkpointer(dsn="work_high", user="me", password="x", wallet_location="/w", config_dir="/w")
    assert "work_high" in repr(wallet)
    await wallet.close()
    async with oracle_checkpointer(dsn=f"127.0.0.1:{port}/work", user="admin", password="s3cret") as nowhere:
        with pytest.raises(Unavailable):
            await nowhere.load("t")
