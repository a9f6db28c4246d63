"""A provider whose program starts in milliseconds: what the sessions of all providers have in common is tested with it."""

from __future__ import annotations

import json
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from clew.log import Usage
from clew.messages import (
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    User,
    assistant,
    plain_text,
    tool,
    tool_calls,
    user,
)
from clew.messages.dialects import Loss
from clew.providers.base import Command, Conversation, Health, Job, NativeSession, Place, Program, Provider, Standing
from clew.providers.events import Delta, Failed, Finished, Other, ProviderEvent, Response, Result

__all__ = ["PROGRAM", "Toy", "Twin", "toy_place"]

PROGRAM = Path(__file__).with_name("toy_program.py")


def toy_place(root: Path) -> Place:
    """A machine of its own: a home and a folder to work in."""
    for name in ("home", "work"):
        (root / name).mkdir(parents=True, exist_ok=True)
    return Place(root / "work", {"HOME": str(root / "home"), "PATH": "/usr/bin:/bin"})


class Toy(Provider):
    name = "toy"
    title = "Toy"
    install = "make toy"

    def program(self) -> Program | None:
        absent = self.place.home / f"{self.name}-is-not-installed"
        return None if absent.exists() else Program(Path(sys.executable), "1")

    def new_key(self) -> str:
        return secrets.token_hex(8)

    async def prepare(self, program: Program, job: Job) -> None:
        file = self._file(job.key)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    def command(self, program: Program, job: Job) -> Command:
        system = ["--system", job.system_prompt] if job.system_prompt else []
        if (self.place.home / f"{self.name}-is-at-its-limit").exists():
            return Command((str(program.path), "-I", str(PROGRAM), str(self._file(job.key))), b"fail limit no quota")
        return Command((str(program.path), "-I", str(PROGRAM), str(self._file(job.key)), *system), job.prompt.encode())

    def reader(self, job: Job) -> _Reader:
        return _Reader()

    def export(self, key: str, folder: Path) -> bool:
        if not self._file(key).exists():
            return False
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(self._file(key), folder / "rows")
        return True

    def standing(self, key: str, folder: Path) -> Standing:
        if not self._file(key).exists():
            return "absent"
        mine, kept = self._file(key).read_text(), (folder / "rows").read_text()
        if mine == kept:
            return "same"
        return "ahead" if mine.startswith(kept) else "behind" if kept.startswith(mine) else "apart"

    def install_session(self, key: str, folder: Path) -> None:
        self._file(key).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder / "rows", self._file(key))

    def read(self, folder: Path) -> Conversation:
        messages: list[Message] = []
        for row in map(json.loads, (folder / "rows").read_text().splitlines()):
            if row["role"] == "call":
                messages.append(assistant(ToolCall(row["text"].split()[0], row["text"].split()[1], {})))
            elif row["role"] == "result":
                messages.append(tool(ToolResult(row["of"], (Text(row["text"]),))))
            else:
                messages.append(user(row["text"]) if row["role"] == "user" else assistant(row["text"]))
        return Conversation(messages=tuple(messages))

    def write(self, conversation: Conversation, key: str, folder: Path) -> tuple[Loss, ...]:
        folder.mkdir(parents=True, exist_ok=True)
        rows = []
        for message in conversation.messages:
            if text := plain_text(message):
                rows.append({"role": "user" if isinstance(message, User) else "assistant", "text": text})
            rows += [{"role": "call", "text": f"{call.id} {call.name}"} for call in tool_calls(message)]
            for block in message.content:
                if isinstance(block, ToolResult):
                    texts = [part.text for part in block.content if isinstance(part, Text)]
                    rows.append({"role": "result", "of": block.call_id, "text": " ".join(texts)})
        (folder / "rows").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tuple(
            Loss(number, place, "thinking", "a toy does not think")
            for number, message in enumerate(conversation.messages)
            for place, block in enumerate(message.content)
            if isinstance(block, Thinking)
        )

    def find(self, session: str) -> str | None:
        return session if self._file(session).exists() else None

    def sessions(self) -> Iterator[NativeSession]:
        for file in (self.place.home / self.name).glob("*"):
            yield NativeSession(provider=self.name, key=file.name, path=file, size=file.stat().st_size)

    def check(self, program: Program | None) -> Health:
        logged_out = (self.place.home / f"{self.name}-is-logged-out").exists()
        problem = "no login" if logged_out else ""
        return Health(provider=self.name, program=program, logged_in=not logged_out, problem=problem)

    def _file(self, key: str) -> Path:
        return self.place.home / self.name / key


class Twin(Toy):
    """Another provider of the same kind."""

    name = "twin"


class _Reader:
    def __init__(self) -> None:
        self._text = ""
        self._ended = False

    def read(self, line: bytes) -> Iterable[ProviderEvent]:
        try:
            value = msgspec.json.decode(line)
        except msgspec.DecodeError:
            return [Other(line.decode(errors="replace"))]
        child = value.get("child", "")
        match value:
            case {"say": text}:
                self._text = self._text if child else text
                return [Response((Text(text),), child=child)]
            case {"delta": text}:
                return [Delta(text)]
            case {"think": text}:
                return [Response((Thinking(text, "signed"),))]
            case {"call": text}:
                call, name = text.split()[:2]
                return [Response((ToolCall(call, name, {}),))]
            case {"result": text, "of": call}:
                return [Result(ToolResult(call, (Text(text),)))]
            case {"fail": reason, "kind": kind}:
                self._ended = True
                return [Failed(kind, reason, Usage(1, 1), 0.5)]
            case {"done": rows}:
                self._ended = True
                return [Finished(self._text, Usage(10, rows), 0.25)]
        return [Other(value)]

    def end(self, status: int, stderr: str) -> Iterable[ProviderEvent]:
        return [] if self._ended else [Failed("stopped", f"the program ended with {status}")]
