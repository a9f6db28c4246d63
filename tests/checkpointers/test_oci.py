"""OCI's own SDK against a double of the service: what it sends, and what becomes of the answers."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import pytest

from clew.checkpointers import open_checkpointer
from clew.checkpointers.objects.oci import OCICheckpointer
from clew.errors import InvalidInput, MissingExtra, Unavailable
from clew.testing import FreezableStore, OpenStore
from clew.testing.contract.builders import all_blobs, append, listed, put
from clew.testing.contract.concurrency import ConcurrencyContract
from clew.testing.contract.lists import ListingContract
from clew.testing.contract.logs import LogContract
from clew.testing.contract.silence import SilenceContract
from tests.servers.oci_objects import BUCKET, TENANCY, OCIDouble, oci_double
from tests.servers.proxy import Proxy
from tests.servers.running import free_port, lacking
from tests.stores import SILENCE, NewStore, SilentNetwork

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning:oci")]
_numbers = count()


@pytest.fixture(scope="module", autouse=True)
def sdk() -> None:
    if find_spec("oci") is None:
        lacking("no SDK of OCI", install="the extra oci")


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OCIDouble]:
    with oci_double(tmp_path_factory.mktemp("oci")) as double:
        yield double


@pytest.fixture
def new_store(double: OCIDouble) -> NewStore:
    return partial(OCICheckpointer, f"oci://{TENANCY}/{BUCKET}/test/{next(_numbers)}", **double.options)


class TestOnTheDouble(LogContract, ConcurrencyContract, ListingContract, SilenceContract):
    """The parts of the contract that depend most on what the driver does."""

    @pytest.fixture
    async def freezable_store(self, double: OCIDouble) -> AsyncIterator[FreezableStore]:
        port = int(double.options["endpoint"].rpartition(":")[2])
        async with Proxy(("127.0.0.1", port)) as proxy:
            options = {**double.options, "endpoint": f"http://127.0.0.1:{proxy.port}", "timeout": SILENCE}
            async with OCICheckpointer(f"oci://{TENANCY}/{BUCKET}/test/{next(_numbers)}", **options) as store:
                yield SilentNetwork(store, proxy)


async def test_blobs_are_kept_touched_and_removed(open_store: OpenStore) -> None:
    store, other = open_store(), open_store()
    small, large = await put(store, b"small", b"large" * 10_000)
    assert await other.get_blobs([small, large]) == {small: b"small", large: b"large" * 10_000}
    assert await other.missing_blobs([small, large, "0" * 64]) == {"0" * 64}
    assert sorted(await all_blobs(store)) == sorted([small, large])
    await store.delete_blobs([small, large], untouched_for=timedelta(hours=1))
    assert await other.missing_blobs([small, large]) == set()
    await store.delete_blobs([small, large], untouched_for=timedelta(0))
    assert await other.get_blobs([small, large]) == {}
    assert await all_blobs(other) == []


async def test_an_append_is_one_put_on_condition_of_the_etag(open_store: OpenStore, double: OCIDouble) -> None:
    store = open_store()
    await store.head("thread")
    double.requests.clear()
    await append(store, "thread", b"one")
    await append(store, "thread", b"two", at=1)
    [(first, made), (second, replaced)] = double.requests
    assert (first, second) == ("PUT", "PUT")
    assert made == {"if-none-match": "*"}
    assert set(replaced) == {"if-match"}


async def test_listings_go_on_over_many_pages(open_store: OpenStore, double: OCIDouble) -> None:
    store = open_store()
    for number in range(120):
        await append(store, f"thread {number}", b"frame")
    double.requests.clear()
    assert sorted(await listed(open_store())) == sorted(f"thread {number}" for number in range(120))
    assert Counter(method for method, given in double.requests if not given) >= Counter(GET=3)


async def test_a_service_that_fails_for_a_moment_is_asked_again(open_store: OpenStore, double: OCIDouble) -> None:
    store = open_store()
    await append(store, "thread", b"one")
    for answer in [(503, "ServiceUnavailable"), (429, "TooManyRequests"), (500, "InternalServerError")]:
        double.fail_with = [answer]
        assert await store.read("thread") == [b"one"]
    double.fail_with = [(409, "ConcurrentObjectUpdate")]
    await append(store, "thread", b"two", at=1)
    assert await store.read("thread") == [b"one", b"two"]


async def test_a_bucket_or_right_that_is_lacking_is_unavailable_and_never_an_absent_thread(
    open_store: OpenStore, double: OCIDouble
) -> None:
    store = open_store()
    await store.head("thread")
    for answer in [(404, "BucketNotFound"), (404, "NotAuthorizedOrNotFound"), (401, "NotAuthenticated")]:
        double.fail_with = [answer]
        with pytest.raises(Unavailable, match=answer[1]):
            await store.read("thread")
    other = OCICheckpointer(f"oci://{TENANCY}/another", **double.options)
    with pytest.raises(Unavailable, match="BucketNotFound"):
        await other.head("thread")
    await other.close()


async def test_an_endpoint_that_does_not_answer_is_unavailable(double: OCIDouble) -> None:
    nobody = {**double.options, "endpoint": f"http://127.0.0.1:{free_port()}"}
    store = OCICheckpointer(f"oci://{TENANCY}/{BUCKET}", **nobody)
    with pytest.raises(Unavailable):
        await store.head("thread")
    await store.close()


async def test_without_a_way_to_sign_the_error_says_which_there_are(tmp_path: Path) -> None:
    store = OCICheckpointer(f"oci://{TENANCY}/{BUCKET}", config_file=str(tmp_path / "none"))
    with pytest.raises(InvalidInput, match="auth=instance"):
        await store.head("thread")
    await store.close()


@pytest.mark.parametrize(
    "url",
    [
        "oci://",
        "oci://tenancy",
        "oci://tenancy/",
        "oci:tenancy/bucket",
        "oci://tenancy/bucket/a//b",
        "oci://tenancy/bucket?auth=password",
        "oci://tenancy/bucket?key=hunter2",
        "oci://user:hunter2@tenancy/bucket",
        "oci://tenancy/bucket?endpoint=http://storage.example.com",
    ],
)
def test_a_url_that_names_no_bucket_is_invalid_and_keys_in_it_are_not_shown(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_checkpointer(url)
    assert "hunter2" not in str(caught.value)


async def test_a_url_opens_the_store_it_names(double: OCIDouble) -> None:
    url = f"oci://{TENANCY}/{BUCKET}/by-url?config_file={double.options['config_file']}&endpoint={double.options['endpoint']}"
    async with open_checkpointer(url) as store:
        await append(store, "thread", b"frame")
        assert await store.read("thread") == [b"frame"]
        assert store.place == f"oci://{TENANCY}/{BUCKET} at {double.options['endpoint']}/by-url#"


def test_without_the_sdk_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "oci", None)
    with pytest.raises(MissingExtra, match=r"clew\[oci\]"):
        open_checkpointer("oci://tenancy/bucket")
