"""Makes `llm-VERSION.db.gz` in this folder: what the program `llm` (on PyPI) itself wrote, for the tests of its importer.

    python3 -m venv OLD && OLD/bin/pip install llm==0.16 httpx 'openai<2'      # and others in the same way
    .venv/bin/python -m tests.compat.importers.make_llm_logs OLD/bin/llm MIDDLE/bin/llm NEW/bin/llm

Each program makes a log of its own, of the conversations that its version can have. The last program then goes on with
every conversation in the log of the one before it, which makes `llm-VERSION-to-VERSION.db.gz`. Models are played by a
`ModelServer`.
"""

from __future__ import annotations

import contextlib
import gzip
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

from clew.messages import plain_text
from clew.models.base import ModelRequest
from clew.testing import ModelServer, call, reply, think
from clew.testing.replies import Response
from tests.compat.importers.llm_logs import PICTURE

__all__: list[str] = []

HERE = Path(__file__).parent
FUNCTIONS = """
def multiply(a: int, b: int) -> int:
    "Multiply two numbers."
    return a * b

def fail() -> str:
    "Fail."
    raise ValueError("it is broken")
"""
MODELS = """
- model_id: fake
  model_name: gpt-4o
  api_base: {url}
  supports_tools: true
  supports_schema: true
  vision: true
"""


def answer(request: ModelRequest) -> Response:
    """What the model says: it goes by the last prompt, and by whether a tool has answered it."""
    last = request.messages[-1]
    said = [plain_text(message) for message in request.messages if plain_text(message)]
    prompt = said[-1] if said else ""
    if type(last).__name__ == "Tool":
        return "The results are in."
    if "6 times 7" in prompt:
        return reply("I multiply.", call("multiply", a=6, b=7), call("fail"))
    if "Think" in prompt:
        return reply(think("Hmm. A hard one."), "I have thought.")
    return f"Answer {len(request.messages)} to {prompt.splitlines()[-1][:40]}"


class Program:
    """An installed `llm`, in a home of its own."""

    def __init__(self, program: str, home: Path, server: ModelServer) -> None:
        self.path = program
        self.home = home
        self.env = {"HOME": str(home), "PATH": "/usr/bin:/bin", "LLM_USER_PATH": str(home), **server.env()}
        self.version = self.run("--version").split()[-1]
        self.number = tuple(int(part) for part in self.version.split("."))
        (home / "extra-openai-models.yaml").write_text(MODELS.format(url=server.openai_url))

    def run(self, *arguments: str, given: bytes = b"") -> str:
        run = subprocess.run(
            [self.path, *arguments], cwd=self.home, env=self.env, input=given, capture_output=True, check=False
        )
        if run.returncode:
            raise SystemExit(f"llm {arguments}: {run.stderr.decode()}")
        return run.stdout.decode()

    def ask(self, *arguments: str) -> None:
        self.run("prompt", "-m", "fake", "--no-stream", *arguments)

    def talk(self) -> None:
        """Have every kind of conversation that this version can have."""
        self.ask("Plan a trip to Paris.", "-s", "You are terse.", "-o", "temperature", "0.2")
        self.ask("And to Rome?", "-c")
        self.ask("Now politely.", "-c", "-s", "You are polite.")
        if self.number >= (0, 17):
            (self.home / "dot.png").write_bytes(PICTURE)
            (self.home / "gone.png").write_bytes(PICTURE + b"\0")
            linked = ("--at", "http://127.0.0.1:9/cat.png", "image/png")
            self.ask("What is this?", "-a", "dot.png", *linked, "-a", "gone.png")
            self.run("prompt", "-m", "fake", "--no-stream", "And this?", "-a", "-", given=PICTURE + b"\1")
        if self.number >= (0, 24):
            (self.home / "poem.txt").write_text("Roses are red.")
            self.ask("Go on with it.", "-f", "poem.txt", "--sf", "poem.txt")
        if self.number >= (0, 26):
            self.ask("How much is 6 times 7?", "--functions", FUNCTIONS)
            self.ask("A dog.", "--schema", "name, age int")
        if self.number >= (0, 32):
            self.run("prompt", "-m", "gpt-5", "--no-stream", "Think about it.")

    def keep(self, name: str) -> None:
        """Write the log, compacted, into the folder of the tests."""
        copy = self.home / "copy.db"
        with contextlib.closing(sqlite3.connect(self.home / "logs.db")) as log:
            log.execute("VACUUM INTO ?", (str(copy),))
        data = copy.read_bytes()
        copy.unlink()
        (HERE / f"{name}.db.gz").write_bytes(gzip.compress(data, mtime=0))
        print(f"{name}.db.gz: {len(data)} bytes before compression")


def main(*programs: str) -> None:
    with tempfile.TemporaryDirectory(prefix="clew-llm-") as folder, ModelServer(answer, strict=False) as server:
        made: list[Program] = []
        for path in programs:
            home = Path(folder, f"home-{len(made)}")
            home.mkdir()
            program = Program(path, home, server)
            program.talk()
            program.keep(f"llm-{program.version}")
            made.append(program)
        if len(made) > 1:
            before, newest = made[-2:]
            shutil.copy(before.home / "logs.db", newest.home / "logs.db")
            for conversation in _conversations(newest.home / "logs.db"):
                newest.ask("What did we say?", "--cid", conversation)
            newest.keep(f"llm-{before.version}-to-{newest.version}")


def _conversations(log: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(log)) as db:
        return [str(row[0]) for row in db.execute("SELECT id FROM conversations ORDER BY id")]


if __name__ == "__main__":
    main(*sys.argv[1:])
