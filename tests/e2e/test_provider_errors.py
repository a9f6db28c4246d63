"""The three real coding agents, refused by their vendor: what it says is told once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from clew import open_checkpointer
from clew.errors import ProviderError
from clew.testing import Fault, ModelServer
from tests.e2e.desk import NAMES, Desk
from tests.servers.clis import answering

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.xdist_group("real-clis")]


@pytest.mark.parametrize("provider", NAMES)
async def test_an_error_of_the_vendor_is_told_once(
    provider: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refused = Fault(status=400, message="no such thing as 4711")
    with ModelServer(answering(lambda request: refused), strict=False) as server:
        here = Desk(tmp_path, server)
        async with open_checkpointer(here.url) as store:
            agent = here.agent(here.machine(), provider, store)
            with caplog.at_level(logging.INFO, "clew"), pytest.raises(ProviderError) as caught:
                await agent.run("Hi", thread_id="t")
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ()), caplog.text])
    assert told.count("no such thing as 4711") == 1
