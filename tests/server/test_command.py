"""`clew serve` as people run it: its help, its tokens, its refusals, its logs and its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from clew.checkpointers import Head, open_checkpointer
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
    with subprocess.Popen(
        command, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            events = (json.loads(line) for line in process.stderr)
            yield next(event["url"] for event in events if event["event"] == "listening"), process
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
        (["--host", "0.0.0.0", "--no-token"], "no tokens"),
        (["--socket", "."], "not a socket"),
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


THREAD = f"/v1/threads/{encode_text('thread')}"


def test_without_tokens_it_makes_one_and_prints_the_link_that_signs_in(tmp_path: Path) -> None:
    with running("--store", f"sqlite:///{tmp_path}/clew.db", HOME=str(tmp_path)) as (url, process):
        assert process.stdout is not None
        link = process.stdout.readline().removeprefix("Open in a browser: ").strip()
        variables = dict(word.split("=") for word in process.stdout.readline().split() if "=" in word)
        token = variables["CLEW_TOKEN"]
        assert link == f"{url}/login?token={token}"
        assert variables["CLEW_STORE"] == url
        assert httpx.get(f"{url}{THREAD}").status_code == 401
        assert httpx.get(f"{url}{THREAD}", headers={"authorization": f"Bearer {token}"}).status_code == 404
        assert httpx.get(f"{url}/").status_code == 401
        with httpx.Client(follow_redirects=True) as browser:
            shown = browser.get(link)
            assert (shown.status_code, str(shown.url)) == (200, f"{url}/")
        process.terminate()
        assert process.stderr is not None
        assert token not in process.stderr.read()


def test_every_run_makes_another_token() -> None:
    made = set()
    for _ in range(2):
        with running("--store", "memory://") as (_, process):
            assert process.stdout is not None
            made.add(process.stdout.readline().partition("token=")[2])
    assert len(made) == 2


def test_no_token_says_what_it_means() -> None:
    command = [sys.executable, "-m", "clew", "serve", "--port", "0", "--store", "memory://", "--no-token"]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            warning, listening = (json.loads(process.stderr.readline()) for _ in range(2))
            assert "every user and every program of this machine" in warning["message"]
            assert httpx.get(f"{listening['url']}{THREAD}").status_code == 404
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="needs unix sockets")
def test_a_socket_is_for_its_user_alone_and_needs_no_token(tmp_path: Path) -> None:
    path = tmp_path / "clew.sock"
    with running("--store", "memory://", "--socket", str(path)) as (url, process):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert asyncio.run(_head_at(url)) is None
        second = clew_serve("--store", "memory://", "--socket", str(path))
        assert (second.returncode, "another service listens" in second.stderr) == (5, True)
        process.kill()
        process.wait(PATIENCE)
    with running("--store", "memory://", "--socket", str(path)) as (url, process):  # over what the killed one left
        assert asyncio.run(_head_at(url)) is None
        process.terminate()
        assert process.wait(PATIENCE) == 0
    assert not path.exists()


async def _head_at(url: str) -> Head | None:
    async with open_checkpointer(url) as store:
        return await store.head("thread")


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
