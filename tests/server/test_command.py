"""`clew serve` as people run it: its help, its tokens, its refusals, its logs and its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from clew.checkpointers.http.protocol import encode_text
from tests.limits import PATIENCE

pytestmark = pytest.mark.slow

SECRET = "a-long-and-secret-token"


def environment(**more: str) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith("CLEW_")}
    return {**mine, "COLUMNS": "200", **more}


def clew_serve(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clew", "serve", *arguments]
    return subprocess.run(command, env=environment(**more), capture_output=True, text=True, timeout=PATIENCE)


@contextmanager
def running(*arguments: str, **more: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server on a port of its own choice, and its URL."""
    command = [sys.executable, "-m", "clew", "serve", "--port", "0", *arguments]
    with subprocess.Popen(command, env=environment(**more), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            event = json.loads(process.stderr.readline())
            assert event["event"] == "listening", event
            yield event["url"], process
        finally:
            process.kill()


def test_help_names_the_options_and_has_an_example() -> None:
    said = clew_serve("--help").stdout
    assert all(word in said for word in ("--store", "--token-file", "--tls-cert", "clew serve --token-file"))


def test_a_new_token_goes_into_the_file_as_it_is_printed(tmp_path: Path) -> None:
    made = clew_serve("--new-token", "--namespace", "team", "--scopes", "read,write", "--label", "ci")
    secret = made.stderr.splitlines()[0].split(": ")[1]
    assert secret not in made.stdout
    path = tmp_path / "tokens.jsonl"
    path.write_text(made.stdout)
    with running("--store", "memory://", "--token-file", str(path)) as (url, _):
        thread = f"{url}/v1/threads/{encode_text('thread')}"
        assert httpx.get(thread, headers={"authorization": f"Bearer {secret}"}).status_code == 404
        assert httpx.get(thread).status_code == 401


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "no tokens"),
        (["--token-file", "absent.jsonl"], "absent.jsonl"),
        (["--store", "quark://x"], "quark"),
        (["--port", "99999"], "99999"),
        (["--rate", "-1"], "rate"),
        (["--burst", "5"], "burst"),
        (["--tls-cert", "absent.pem"], "both files"),
        (["--tls-cert", "absent.pem", "--tls-key", "absent.pem"], "absent.pem"),
        (["--new-token", "--namespace", "a/b"], "a/b"),
        (["--new-token"], "not a namespace"),
        (["--new-token", "--namespace", "a", "--scopes", "root"], "root"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(arguments: list[str], said: str) -> None:
    store = [] if "--store" in arguments else ["--store", "memory://"]
    run = clew_serve(*store, *arguments)
    assert run.returncode == 2
    assert run.stderr.startswith("Error: ")
    assert said in run.stderr
    assert "Traceback" not in run.stderr


def test_a_port_that_is_taken_is_named() -> None:
    with running("--store", "memory://") as (url, _):
        port = url.rsplit(":", 1)[1]
        run = clew_serve("--store", "memory://", "--port", port)
    assert run.returncode == 5
    assert f"127.0.0.1:{port}" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(number: signal.Signals) -> None:
    with running("--store", "memory://", CLEW_SERVE_TOKENS=SECRET) as (url, process):
        httpx.get(f"{url}/v1/threads/YQ", headers={"authorization": f"Bearer {SECRET}"})
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0
        assert process.stderr is not None
        lines = [json.loads(line) for line in process.stderr]
    assert [line["event"] for line in lines] == ["request", "stopping"]
    assert SECRET not in str(lines)
