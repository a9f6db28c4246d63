"""`clew stats`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_line import Samples, clew, objects, terminal

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return Samples(tmp_path_factory.mktemp("store"))


def test_everything_is_added_up_by_status_agent_and_day(samples: Samples) -> None:
    (found,) = objects(samples.clew("stats", "--json"))
    assert (found["threads"], found["turns"], found["unpriced"]) == (5, 10, 2)
    assert found["cost_usd"] == pytest.approx(0.0522)
    assert found["stored_bytes"] >= samples.database.stat().st_size
    assert {one["status"]: one["threads"] for one in found["by_status"]} == {
        "done": 2,
        "failed": 1,
        "interrupted": 1,
        "waiting": 1,
    }
    assert {one["agent"]: one["turns"] for one in found["by_agent"]} == {"planner": 9, "writer": 1}
    assert sum(one["input_tokens"] for one in found["by_day"]) == found["input_tokens"]


def test_in_a_pipe_it_is_plain_and_on_a_terminal_it_has_bars(samples: Samples) -> None:
    plain = samples.clew("stats").stdout
    assert plain.startswith("5 threads · 10 turns · 9.4k tokens · $0.05 + ? · ")
    assert "█" not in plain
    assert [line.split()[0] for line in plain.splitlines() if line.isupper()] == ["STATUS", "AGENT", "DAY"]
    with terminal("stats", store=samples.url) as shell:
        assert shell.end() == 0
    assert "█" in shell.shown


def test_since_leaves_out_what_is_older_and_an_empty_store_says_so(samples: Samples, tmp_path: Path) -> None:
    (none,) = objects(samples.clew("stats", "--since", "2999-01-01", "--json"))
    assert (none["threads"], none["by_day"]) == (0, [])
    run = clew("stats", store="memory://")
    assert run.stdout.startswith("0 threads · 0 turns · 0 tokens · $0.00")
    assert "There are no threads to count." in run.stderr
    assert samples.clew("stats", "--since", "never").returncode == 2


def test_what_a_store_elsewhere_takes_is_not_known(tmp_path: Path) -> None:
    (found,) = objects(clew("stats", "--json", store="memory://"))
    assert found["stored_bytes"] is None
