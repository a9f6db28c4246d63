"""What `clew` says of itself is true: its help fits a screen, and every example in it runs."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import httpx
import pytest

from clew import Thread, open_checkpointer
from clew.cli.app import COMMANDS
from clew.log import MessageAdded
from clew.messages import assistant, user
from clew.providers.base import Conversation, Place
from clew.providers.registry import find_provider
from clew.testing import ModelServer
from tests.cli import shop_agents
from tests.cli.command_line import Samples, clew, environment, hear_signals, path_with_clew
from tests.limits import PATIENCE
from tests.sampling import sampled
from tests.servers.clis import cli_path

BEFORE = {
    "resume": "clew rm trip --yes && clew run 'Plan a trip to Rome.' --thread trip",
    "move": "clew rm trip --yes && clew run 'Plan a trip to Rome.' --thread trip",
    "import": "clew export trip trip.clew",
    "rekey": "CLEW_KEY=old clew rekey --allow-plain",
    "work": f"mkdir shop && cp {shlex.quote(shop_agents.__file__)} shop/agents.py",
}
"""What an example needs that is done first."""
KEYS = {"old": "0" * 64, "new": "1" * 64, "key": "1" * 64}
"""Real keys for the words that stand for keys in the examples."""
SESSION = "0199c0de-7a1b-7c2d-8e3f-000000000001"
NARROW = {"COLUMNS": "80"}


def text_of(name: str) -> str:
    module, _, function = COMMANDS[name].place.partition(":")
    command = getattr(import_module(f"clew.cli.commands.{module}"), function)
    return inspect.getdoc(command) or ""


def examples_of(name: str) -> list[str]:
    lines = text_of(name).partition("Examples:\n")[2].splitlines()
    return [line.strip() for line in lines if line.strip()]


def test_help_fits_a_screen_and_names_every_command() -> None:
    run = clew("--help", env=NARROW)
    lines = run.stdout.splitlines()
    assert (run.returncode, run.stderr) == (0, "")
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 45
    for name, entry in COMMANDS.items():
        assert f" {name:<9} {entry.summary}\n" in run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_begins_as_in_the_list_and_has_its_examples_unbroken(name: str) -> None:
    first = " ".join(text_of(name).split("\n\n")[0].split())
    assert re.split(r"(?<=\.) ", first)[0] == COMMANDS[name].summary
    run = clew(name, "--help", env=NARROW)
    said = [line.rstrip() for line in run.stdout.splitlines()]
    assert run.returncode == 0
    assert "\x1b" not in run.stdout
    assert max(map(len, said)) <= 80
    assert " Examples:" in said
    assert examples_of(name)
    assert {f"   {example}" for example in examples_of(name)} <= {*said}


class Shell:
    """A folder with the sample threads, a home with a session of Codex in it, and a model that answers."""

    def __init__(self, root: Path, model: ModelServer) -> None:
        self.samples = Samples(root)
        homes = {"HOME": str(root / "home"), "CODEX_HOME": "", "CLAUDE_CONFIG_DIR": "", "XDG_DATA_HOME": ""}
        models = {**model.env(), "CLEW_MODEL": "openai:gpt-5"}
        self.env = environment(self.samples.url, {**homes, **models, "PATH": path_with_clew(root / "bin")})

    def keep_session(self, key: str) -> None:
        place = Place(self.samples.folder, self.env)
        codex, written = find_provider("codex")(place), self.samples.folder.parent / "session"
        written.mkdir()
        codex.write(Conversation(messages=(user("Hi."), assistant("Hi.")), cwd=str(place.cwd)), key, written)
        codex.install_session(key, written)

    @contextmanager
    def start(self, line: str) -> Iterator[subprocess.Popen[str]]:
        line = re.sub(r"(?<=^CLEW_KEY=)\S+", lambda named: ",".join(KEYS[word] for word in named[0].split(",")), line)
        process = subprocess.Popen(
            ["/bin/sh", "-c", line],
            cwd=self.samples.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=hear_signals,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def run(self, line: str) -> None:
        with self.start(line) as process:
            out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, f"{line}\n{out}\n{err}"

    def serve(self, line: str) -> None:
        """Until it answers, and then to its end by Ctrl+C. On any port, for other tests run at the same time."""
        with self.start(f"exec {line} --port 0") as process:
            assert process.stderr is not None
            said = (json.loads(line) for line in process.stderr)
            url = next(event["url"] for event in said if event["event"] == "listening")
            if "?socket=" not in url:
                assert httpx.get(f"http://127.0.0.1:{url.rpartition(':')[2]}/healthz").status_code == 200
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="the examples are for a POSIX shell")
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(COMMANDS, 14))
def test_the_examples_of_a_command_run_one_after_the_other(name: str, tmp_path: Path) -> None:
    with ModelServer(lambda request: "That is done.") as model:
        shell = Shell(tmp_path, model)
        if COMMANDS[name].panel == "Coding agents" or name == "import":
            shell.keep_session(SESSION)
        if name == "move":
            shell.env["PATH"] += f"{os.pathsep}{cli_path()}"
        if name in BEFORE:
            shell.run(BEFORE[name])
        for line in examples_of(name):
            if line.startswith("clew serve"):
                shell.serve(line)
            else:
                shell.run(line)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_can_be_printed(shell: str) -> None:
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    run = clew("--show-completion", shell, env=named)
    assert run.returncode == 0
    assert f"_CLEW_COMPLETE=complete_{shell}" in run.stdout


def completed(shell: str, typed: str, samples: Samples) -> list[str]:
    """What this shell is offered for the last word."""
    run = samples.clew(env={**_asked(shell, typed), "_CLEW_COMPLETE": f"complete_{shell}"})
    assert run.stderr == ""
    return re.findall(r"[\w-]+", run.stdout)


def _asked(shell: str, typed: str) -> dict[str, str]:
    asked = {
        "bash": {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))},
        "zsh": {"_TYPER_COMPLETE_ARGS": typed},
        "fish": {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }
    return asked[shell]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return Samples(tmp_path_factory.mktemp("completing"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_offered_the_threads_that_begin_so(shell: str, samples: Samples) -> None:
    assert {"trip", "trip-b"} <= {*completed(shell, "clew show tri", samples)}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_not_offered_an_id_that_it_could_run(shell: str, tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    asyncio.run(_write_threads(samples.url, "a\\", "<(touch x)", "c\\", "$(touch x)", "two\nlines", "-x", "plain-1"))
    run = samples.clew(env={**_asked(shell, "clew show "), "_CLEW_COMPLETE": f"complete_{shell}"})
    assert "plain-1" in run.stdout
    assert not re.search(r"touch|\\\\|lines", run.stdout), run.stdout


async def _write_threads(url: str, *ids: str) -> None:
    async with open_checkpointer(url) as store:
        for thread_id in ids:
            async with Thread.open(store, thread_id) as thread:
                await thread.append(MessageAdded(user("Hello.")))


def test_a_shell_is_offered_commands_options_and_nothing_from_a_store_that_is_not_there(samples: Samples) -> None:
    assert completed("bash", "clew s", samples) == ["send", "show", "search", "stats", "sessions", "serve"]
    assert completed("bash", "clew show --ent", samples) == ["--entries"]
    nowhere = samples.clew(
        env={
            "CLEW_STORE": "sqlite:///nowhere.db",
            "COMP_WORDS": "clew show tri",
            "COMP_CWORD": "2",
            "_CLEW_COMPLETE": "complete_bash",
        }
    )
    assert (nowhere.stdout.strip(), nowhere.stderr) == ("", "")
    assert not (samples.folder / "nowhere.db").exists()
