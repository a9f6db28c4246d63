"""Workflows that an older version of Clew began go on with this one: their stored histories replay."""

from __future__ import annotations

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from clew.integrations.temporal import ClewPlugin
from tests.integrations.temporal.child import in_child
from tests.integrations.temporal.record import HISTORIES
from tests.integrations.temporal.workflows import Approval, Invoice


async def replay(name: str, text: str) -> None:
    """Replay a history as workers do. Without agents, as on a worker that only decides."""
    replayer = Replayer(workflows=[Invoice, Approval], plugins=[ClewPlugin()])
    await replayer.replay_workflow(WorkflowHistory.from_json(name, text))


@in_child
async def test_the_histories_of_older_versions_replay() -> None:
    histories = sorted(HISTORIES.glob("*.json"))
    assert len(histories) >= 10
    for history in histories:
        await replay(history.stem, history.read_text())


@in_child
async def test_a_history_that_another_workflow_wrote_does_not_replay() -> None:
    text = (HISTORIES / "answered.json").read_text().replace("clew_run_thread", "clew_other")
    with pytest.raises(NondeterminismError):
        await replay("answered", text)


def test_no_stored_history_holds_paths_of_the_machine_that_recorded_it() -> None:
    assert [path.name for path in HISTORIES.glob("*.json") if ".py" in path.read_text()] == []
