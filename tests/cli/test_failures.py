"""How commands tell of errors: once, wherever they come from."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from clew.testing import ModelServer
from tests.cli.command_line import Samples
from tests.cli.workshop import Workshop
from tests.limits import PATIENCE

pytestmark = pytest.mark.slow

NAP = ({"call": {"name": "nap", "arguments": {"seconds": 60}}}, "Rested.")


@pytest.mark.parametrize("kind", ["login", "limit", "context", "stopped", "failed"])
def test_an_error_of_a_provider_is_printed_once(kind: str, tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    run = shop.clew("run", f"fail {kind} for a reason of its own", "--provider", "toy", "--thread", "t")
    assert run.returncode != 0
    assert run.stderr.count("for a reason of its own") == 1 + run.stderr.count("resume t 'fail"), run.stderr


def test_an_error_of_a_model_is_printed_once(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    with ModelServer(["never"], key="another") as server:
        env = {**server.env(), "OPENAI_API_KEY": "sk-wrong-0123456789", "CLEW_MODEL": "openai:gpt-5"}
        run = shop.clew("run", "Hello.", "--thread", "t", env=env)
    assert run.returncode == 1
    assert run.stderr.count("the request was refused") == 1, run.stderr


def test_that_a_thread_was_taken_away_is_printed_once(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    options = ("--model", shop.script("nap", *NAP), "--tool", "shop:nap", "--thread", "t")
    with shop.process("run", "Nap.", *options) as running:
        shop.until("napping")
        taken = shop.clew("unlock", "t", "--force", "--yes")
        assert taken.returncode == 0, taken.stderr
        _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 4, said
    assert said.count("was taken over by") == 1, said


def test_a_thread_that_cannot_be_copied_is_named_once(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    samples.damage_frame("trip", 3)
    run = samples.clew("copy", samples.url, f"sqlite:///{tmp_path / 'copy.db'}")
    assert run.returncode != 0
    assert run.stderr.count("not copied") == 1, run.stderr


def test_an_id_that_a_terminal_would_obey_is_listed_with_that_made_visible(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.clew("run", "Hi.", "--model", shop.script("a", "Hello."), "--thread", "bell\x07\u202e and\nline")
    which = shop.clew("resume")
    assert (which.returncode, "\x07" in which.stderr, "\u202e" in which.stderr) == (2, False, False)
    assert which.stderr.splitlines()[1].startswith("  bell\\x07\\u202e and line · done")


def test_a_stop_that_cannot_be_recorded_is_told_in_a_sentence_that_ends_once(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    options = ("--model", shop.script("nap", *NAP), "--tool", "shop:nap", "--thread", "t")
    with shop.process("run", "Nap.", *options) as running:
        shop.until("napping")
        assert shop.clew("unlock", "t", "--force", "--yes").returncode == 0
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=PATIENCE)
    assert "taken over by another writer" in said
    assert ".." not in said
