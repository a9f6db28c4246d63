from __future__ import annotations

import os
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from clew.checkpointers.objects.oci import OCICheckpointer
from clew.testing import CheckpointerContract, OpenStore

URL = os.environ.get("CLEW_TEST_OCI_URL", "")


if not URL:
    pytest.skip("CLEW_TEST_OCI_URL names no bucket: oci://namespace/bucket/prefix?auth=…", allow_module_level=True)


class TestOCI(CheckpointerContract):
    """On OCI itself, in a prefix of its own for each test. What it leaves there may be deleted."""

    @pytest.fixture
    async def open_store(self) -> AsyncIterator[OpenStore]:
        opened: list[OCICheckpointer] = []
        address, _, options = URL.partition("?")
        url = f"{address.rstrip('/')}/{uuid4().hex}?{options}".rstrip("?")

        def open_store(namespace: str = "") -> OCICheckpointer:
            opened.append(OCICheckpointer.from_url(url, namespace))
            return opened[-1]

        yield open_store
        for store in opened:
            await store.close()
