from __future__ import annotations

import os
from functools import partial
from uuid import uuid4

import pytest

from clew.checkpointers.objects.oci import OCICheckpointer
from tests.stores import NewStore, StoreContract

URL = os.environ.get("CLEW_TEST_OCI_URL", "")


if not URL:
    pytest.skip("CLEW_TEST_OCI_URL names no bucket: oci://namespace/bucket/prefix?auth=…", allow_module_level=True)


class TestOCI(StoreContract):
    """On OCI itself, in a prefix of its own for each test. What it leaves there may be deleted."""

    @pytest.fixture
    def new_store(self) -> NewStore:
        address, _, options = URL.partition("?")
        return partial(OCICheckpointer.from_url, f"{address.rstrip('/')}/{uuid4().hex}?{options}".rstrip("?"))
