"""`CheckpointerContract`: all tests that a store has to pass, as one test class."""

from __future__ import annotations

from clew.errors import MissingExtra

try:
    import pytest
except ImportError as error:
    raise MissingExtra("CheckpointerContract", "testing") from error

_PARTS = (
    "blobs",
    "concurrency",
    "histories",
    "ids",
    "leases",
    "lifetime",
    "limits",
    "lists",
    "logs",
    "queue",
    "reference",
    "seals",
    "silence",
)
pytest.register_assert_rewrite(*(f"clew.testing.contract.{part}" for part in _PARTS))  # a failed assert shows values

from clew.checkpointers.base import Checkpointer  # noqa: E402
from clew.testing.contract.blobs import BlobContract  # noqa: E402
from clew.testing.contract.builders import OpenStore  # noqa: E402
from clew.testing.contract.concurrency import ConcurrencyContract  # noqa: E402
from clew.testing.contract.histories import HistoryContract  # noqa: E402
from clew.testing.contract.ids import IdContract  # noqa: E402
from clew.testing.contract.leases import LeaseContract  # noqa: E402
from clew.testing.contract.lifetime import LifetimeContract  # noqa: E402
from clew.testing.contract.limits import LimitContract  # noqa: E402
from clew.testing.contract.lists import ListingContract  # noqa: E402
from clew.testing.contract.logs import LogContract  # noqa: E402
from clew.testing.contract.queue import QueueContract  # noqa: E402
from clew.testing.contract.reference import ModelContract  # noqa: E402
from clew.testing.contract.seals import SealContract  # noqa: E402
from clew.testing.contract.silence import FreezableStore, SilenceContract  # noqa: E402

__all__ = ["CheckpointerContract", "FreezableStore", "OpenStore"]


class CheckpointerContract(
    LogContract,
    ConcurrencyContract,
    IdContract,
    LimitContract,
    ListingContract,
    QueueContract,
    BlobContract,
    LeaseContract,
    SealContract,
    LifetimeContract,
    SilenceContract,
    ModelContract,
    HistoryContract,
):
    """Everything a `Checkpointer` promises, as tests. Subclass it, say how your store is opened, and run pytest.

        class TestMyStore(CheckpointerContract):
            @pytest.fixture
            async def open_store(self, tmp_path):
                opened = []

                def open_store(namespace=""):
                    opened.append(MyCheckpointer(tmp_path / "store", namespace))
                    return opened[-1]

                yield open_store
                for store in opened:
                    await store.close()

    `open_store(namespace="")` opens another checkpointer on the same underlying store each time it is called, as a second
    connection does. The store is empty when a test starts. The fixture closes what it opened. Some tests close
    earlier, so closing a checkpointer twice must not raise.

    `unreachable_store` is optional: a checkpointer whose store cannot be reached. Without it, the tests that tell
    unreachable from absent are skipped.

    `freezable_store` is optional too: a `FreezableStore`, whose server the tests can make silent, or which another
    process can lock. Without it, the tests which prove that every call ends in time are skipped. Give it if your store
    talks to a server or waits for locks.

    The tests run on asyncio through the pytest plugin that anyio brings. Each test is also a plain coroutine method
    with a fixture as its only argument, so it can be called directly, for example with a store that is broken on purpose.
    """

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Make anyio's pytest plugin run the tests on asyncio, which checkpointers need."""
        return "asyncio"

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Override this fixture. It returns a function that opens another checkpointer on the same store each time it
        is called."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture open_store; see CheckpointerContract")

    @pytest.fixture
    def unreachable_store(self) -> Checkpointer:
        """Override this fixture if your store can be out of reach, for example because it has a server. It returns a
        checkpointer whose store cannot be reached. Without it, the tests that need such a checkpointer are skipped."""
        pytest.skip("no unreachable_store fixture: this store is never out of reach, or its test does not say how")

    @pytest.fixture
    def freezable_store(self) -> FreezableStore:
        """Override this fixture if your store talks to a server or waits for locks. It returns an object with a
        checkpointer, and with methods that make the checkpointer's server silent (or lock its store) and undo that.
        Without it, the tests that need such an object are skipped."""
        pytest.skip(
            "no freezable_store fixture: this store waits for nothing, or its test does not say how to freeze it"
        )
