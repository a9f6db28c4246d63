"""Make the zstd dictionary that frames are compressed with: `python -m tools.make_dictionary`.

A frame is a few hundred bytes to a few kilobytes: too short for zstd to learn anything from it, and its entropy tables
cost more to build than its bytes. The dictionary brings both along: the strings that agents' logs are full of, and
tables that fit them. It is trained on frames made up here, from text written for the purpose, by a seeded generator:
with the same versions of zstandard and msgspec the same bytes come out.

**A released dictionary is never changed.** Frames name it by number, and every log ever written with it needs exactly
these bytes to be read again. A better one is a new file with the next number, beside the old ones. So this refuses to
write over a file that is there; `--force` is for a dictionary that no release has carried yet.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import zstandard

from clew.log.entries import (
    Compacted,
    Described,
    KnownEntry,
    LeaseTaken,
    MessageAdded,
    ModelCallStarted,
    ProviderKey,
    Spend,
    StateSet,
    StatusChanged,
    StepIntent,
    StepOutcome,
    ThreadStarted,
    ToolIntent,
    ToolOutcome,
    Usage,
    WorkspaceSnapshot,
)
from clew.messages import Block, Json, Text, Thinking, ToolCall, ToolResult, assistant, tool, user
from tools import dictionary_text as text

NUMBER = 1
TARGET = Path(__file__).parent.parent / "src" / "clew" / "log" / f"dictionary-{NUMBER}.zstd"
SIZE = 32 * 1024
"""Measured: 16 KiB compresses about 1 % worse, 64 KiB less than 1 % better."""
LEVEL = 3
K, D = 256, 6
"""Segments of 256 bytes, chosen by the strings of 6 they hold: measured, on text of other origin."""
SAMPLES = 8000
BLURRED = 0.5
"""The share of samples whose words are made strange; see `Writer.blur`."""
SEED = 20260101

_T = TypeVar("_T")
_HEX = "0123456789abcdef"
_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SLOT = re.compile("«(\\w+)»")
_MODELS = ("claude-sonnet-4-5", "claude-opus-4-1", "gpt-5", "gpt-5-mini", "gpt-4.1", "gemini-2.5-pro", "openai:gpt-5")
_STOPS = ("end_turn", "tool_use", "stop", "tool_calls", "max_tokens", "length")
_ENDINGS = ("", "", "", "s", "ed", "ing", "ly", "er", "tion", "ment", "ness", "able", "ation", "ity", "ive", "al")


def _paragraphs(source: str) -> list[str]:
    return [" ".join(part.split()) for part in source.strip().split("\n\n")]


def _snippets(source: str) -> list[str]:
    return [part.strip("\n") + "\n" for part in source.split("\n%%\n")]


def _sentences(paragraphs: Sequence[str]) -> list[str]:
    return [part for paragraph in paragraphs for part in re.split(r"(?<=[.?!]) (?=[A-Z])", paragraph)]


class Writer:
    """A seeded author of logs."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._prose = _paragraphs(text.PROSE)
        self._assistant = _paragraphs(text.ASSISTANT)
        self._user = _paragraphs(text.USER)
        self._system = next(paragraph for paragraph in self._user if paragraph.startswith("You are"))
        self._sentences = _sentences(self._prose)
        self._snippets = {
            kind: _snippets(source)
            for kind, source in (("code", text.CODE), ("output", text.OUTPUT), ("markdown", text.MARKDOWN))
        }
        self._data = [" ".join(part.split("\n")) for part in text.DATA.strip().split("\n%%\n")]
        self._fillers = {
            name: [" ".join(item.split()) for item in (values.split("|") if "|" in values else values.split())]
            for name, values in text.FILLERS.items()
        }
        self._keys = [tuple(pair.split(":")) for pair in text.KEYS.split()]
        spoken = " ".join([*self._prose, *self._assistant, *self._user]).lower()
        counts = Counter(re.findall(r"[a-z][a-z']+", _SLOT.sub("", spoken)))
        counts.update(dict.fromkeys(text.WORDS.split(), 2))
        self._words, self._weights = list(counts), list(counts.values())
        self._rare = [word for word in counts if len(word) > 3]
        self._chain: defaultdict[str, list[str]] = defaultdict(list)
        for word in counts:
            for place, letter in enumerate(word + "$"):
                self._chain[f"^^{word}"[place : place + 2]].append(letter)
        self._clock = 1_767_225_600_000_000

    # Values

    def number(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def one_of(self, choices: Sequence[_T]) -> _T:
        return self._random.choice(choices)

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def letters(self, alphabet: str, count: int) -> str:
        return "".join(self._random.choices(alphabet, k=count))

    def value(self, kind: str) -> Any:
        """A value of this kind; what is no kind of its own is one of the fillers."""
        if kind in self._fillers:
            return self.one_of(self._fillers[kind])
        made: dict[str, Callable[[], Any]] = {
            "word": lambda: self.one_of(self._rare),
            "Word": lambda: self.one_of(self._rare).capitalize(),
            "title": lambda: f"{self.value('Word')} {self.value('word')}",
            "sentence": lambda: self.one_of(self._sentences),
            "name": lambda: f"{self.value('first')} {self.value('last')}",
            "email": lambda: (
                f"{self.value('first')}.{self.value('last')}@{self.one_of(('example', 'mail'))}.com".lower()
            ),
            "phone": lambda: f"+1-555-{self.number(0, 9999):04}",
            "address": lambda: f"{self.number(1, 999)} {self.value('last')} Street",
            "url": lambda: f"https://{self.value('host')}/{self.value('word')}/{self.number(1, 9999)}",
            "tiny": lambda: self.number(0, 20),
            "small": lambda: self.number(1, 120),
            "int": lambda: self.number(1, 99999),
            "num": lambda: self.number(100, 99999),
            "price": lambda: self.number(100, 99999) / 100,
            "ratio": lambda: self.number(0, 10000) / 10000,
            "bool": lambda: self.chance(0.6),
            "null": lambda: None,
            "empty": dict,
            "list": list,
            "tags": lambda: [self.value("word") for _ in range(self.number(0, 3))],
            "id": lambda: self.one_of((self.number(1, 9999), self.letters(_BASE62, 16))),
            "order": lambda: f"ORD-{self.number(1000, 99999)}",
            "uuid": lambda: "-".join(self.letters(_HEX, count) for count in (8, 4, 4, 4, 12)),
            "sha": lambda: self.letters(_HEX, 40),
            "hex7": lambda: self.letters(_HEX, 7),
            "ver": lambda: f"{self.number(0, 5)}.{self.number(0, 20)}.{self.number(0, 9)}",
            "year": lambda: self.number(2018, 2027),
            "day": lambda: f"{self.number(1, 28):2}",
            "clock": lambda: f"{self.number(0, 23):02}:{self.number(0, 59):02}:{self.number(0, 59):02}",
            "date": lambda: f"{self.number(2024, 2027)}-{self.number(1, 12):02}-{self.number(1, 28):02}",
            "iso": self._moment,
        }
        return made[kind]()

    def _moment(self) -> str:
        zone = self.one_of(("Z", "+00:00", ".000Z", f".{self.number(0, 999999):06}Z"))
        return f"{self.value('date')}T{self.value('clock')}{zone}"

    def fill(self, template: str) -> str:
        return _SLOT.sub(lambda slot: str(self.value(slot[1])), template)

    # Texts

    def prose(self, length: int) -> str:
        """Sentences in any order, and now and then words in any order, as frequent as they are in English."""
        parts: list[str] = []
        while sum(map(len, parts)) < length:
            if self.chance(0.25):
                words = self._random.choices(self._words, self._weights, k=self.number(5, 14))
                rare = self.one_of(self._rare)
                words.append(rare.rstrip("e") + self.one_of(_ENDINGS))
                parts.append(" ".join(words).capitalize() + ".")
            else:
                parts.append(self.one_of(self._sentences))
        return self.one_of((" ", " ", "\n\n")).join(parts)

    def said(self, by: list[str], length: int) -> str:
        """What a user or an assistant says: their own phrases, then prose, a list or a piece of code."""
        parts = [self.fill(self.one_of(by)) for _ in range(self.number(1, 3))]
        while sum(map(len, parts)) < length:
            if self.chance(0.7):
                parts.append(self.prose(200))
            elif self.chance(0.6):
                parts.append(self.fill(self.one_of(self._snippets["markdown"])))
            else:
                parts.append(f"```{self.one_of(('python', 'bash', 'ts', 'json', ''))}\n{self.snippet('code')}```")
        return self.one_of((" ", "\n\n", "\n\n")).join(parts)

    def snippet(self, kind: str) -> str:
        return self.fill(self.one_of(self._snippets[kind]))

    def code(self, length: int) -> str:
        parts: list[str] = []
        while sum(map(len, parts)) < length:
            parts.append(self.snippet("code"))
        return "\n".join(parts)[: length * 2]

    def rows(self, count: int) -> list[dict[str, Any]]:
        chosen = self._random.sample(self._keys, self.number(3, 9))
        chosen.sort(key=lambda pair: pair[0] != "id")
        return [{key: self.value(kind) for key, kind in chosen} for _ in range(count)]

    def reply(self) -> Any:
        """A JSON value as an API returns it."""
        rows = self.rows(self.number(1, 5))
        return self.one_of(
            (
                rows,
                rows[0],
                {"items": rows, "total": len(rows), "page": 1, "has_more": False},
                {"data": rows, "error": None, "status": "success"},
                {"results": rows, "count": len(rows), "next": None},
                {"id": self.value("id"), "user": rows[0], "metadata": {"created_at": self.value("iso")}},
            )
        )

    def dumped(self) -> str:
        """The same as text, as tools print it; sometimes with JSON in its JSON."""
        if self.chance(0.2):
            return self.fill(self.one_of(self._data))
        value = self.reply()
        if self.chance(0.15):
            value = {"status": 200, "body": json.dumps(value), "headers": {"content-type": "application/json"}}
        return self.one_of(
            (
                json.dumps(value),
                json.dumps(value, indent=2),
                json.dumps(value, separators=(",", ":")),
                "\n".join(map(json.dumps, value)) if isinstance(value, list) else str(value),
            )
        )

    # What was not foreseen

    def blur(self, value: Any) -> Any:
        """The same value with its texts made strange: words out of order, some of them unknown.

        Real text has less in common with the dictionary than text made of the same sentences. Trained on that alone, the
        entropy tables would expect long matches and few literals, and every real frame would have to bring its own.
        """
        if isinstance(value, str):
            return self._blur_text(value) if len(value) > 12 else value
        if isinstance(value, dict):
            return {key: self.blur(item) for key, item in value.items()}
        return [self.blur(item) for item in value] if isinstance(value, list) else value

    def _blur_text(self, plain: str) -> str:
        parts = re.split("([A-Za-z]{2,})", plain)  # words at odd places
        words = [self._new_word(len(word)) if len(word) > 3 and self.chance(0.25) else word for word in parts[1::2]]
        start = 0
        while start < len(words):
            stop = start + self.number(2, 5)
            if self.chance(0.6):
                words[start:stop] = self._random.sample(words[start:stop], len(words[start:stop]))
            start = stop
        parts[1::2] = words
        return "".join(parts)

    def _new_word(self, length: int) -> str:
        """A word that looks like English, each letter drawn by the two before it."""
        word = "^^"
        while len(word) < length + 4:
            letter = self.one_of(self._chain[word[-2:]])
            if letter == "$" and len(word) > 4:
                break
            word = "^^" if letter == "$" else word + letter
        return word[2:]

    # Messages and entries

    def call_id(self) -> str:
        return self.one_of(("toolu_01", "call_")) + self.letters(_BASE62, 22)

    def call(self) -> ToolCall:
        path = self.one_of(("", "/home/user/project/", "/app/", "./")) + str(self.value("path"))
        code = self.snippet("code")
        calls: list[tuple[str, dict[str, Any]]] = [
            ("read_file", {"path": path}),
            ("read_file", {"file_path": path, "offset": self.number(1, 500), "limit": self.number(10, 500)}),
            ("write_file", {"path": path, "content": code}),
            ("edit_file", {"path": path, "old_string": code[:150], "new_string": code[:200]}),
            ("edit_file", {"file_path": path, "old_string": code[:80], "new_string": code[:90], "replace_all": False}),
            (
                "str_replace_editor",
                {"command": "str_replace", "path": path, "old_str": code[:90], "new_str": code[:99]},
            ),
            ("run_command", {"command": self.value("cmd"), "timeout": self.number(5, 600)}),
            ("bash", {"command": self.value("cmd"), "description": f"Run the {self.value('word')} tests"}),
            ("bash", {"command": f"cd /app && {self.value('cmd')}"}),
            ("shell", {"command": ["bash", "-lc", self.value("cmd")], "workdir": "/app", "timeout_ms": 120000}),
            ("python", {"code": code}),
            ("search", {"query": self.value("title"), "limit": self.number(1, 50)}),
            ("grep", {"pattern": f"def {self.value('func')}", "path": "src", "include": "*.py"}),
            ("glob", {"pattern": "**/*.py"}),
            ("web_search", {"query": f"how to {self.value('word')} {self.value('word')} {self.value('year')}"}),
            ("fetch_url", {"url": self.value("url")}),
            ("query_database", {"query": self.fill("SELECT * FROM «table» WHERE id = «small»")}),
            ("list_files", {"path": self.value("dir"), "recursive": True}),
            ("send_email", {"to": self.value("email"), "subject": self.value("title"), "body": self.prose(150)}),
            ("get_weather", {"location": self.value("city"), "unit": "celsius"}),
            ("get_order", {"order_id": self.value("order")}),
            ("get_user", {"user_id": self.number(1, 9999)}),
            ("create_ticket", {"title": self.value("title"), "priority": self.value("priority")}),
        ]
        name, arguments = self.one_of(calls)
        return ToolCall(self.call_id(), name, arguments)

    def result(self) -> ToolResult:
        make = self.one_of((self._code_result, self._output_result, self._json_result, self._prose_result))
        return ToolResult(self.call_id(), (make(),), self.chance(0.05))

    def _code_result(self) -> Text:
        code = self.code(self.number(300, 1500))
        if self.chance(0.25):
            code = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(code.split("\n"), self.number(1, 300)))
        return Text(code)

    def _output_result(self) -> Text:
        return Text("\n".join(self.snippet("output") for _ in range(self.number(1, 3))))

    def _json_result(self) -> Text | Json:
        return Json(self.reply()) if self.chance(0.4) else Text(self.dumped())

    def _prose_result(self) -> Text:
        return Text(self.prose(self.number(200, 1500)))

    def usage(self) -> Usage:
        return Usage(self.number(500, 90000), self.number(10, 3000), self.number(0, 80000), self.number(0, 4000))

    def asked(self) -> MessageAdded:
        return MessageAdded(user(self.said(self._user, self.number(20, 900))))

    def answered(self, calls: int) -> MessageAdded:
        parts: list[Block] = []
        if self.chance(0.3):
            parts.append(Thinking(self.said(self._assistant, self.number(100, 600)), self.letters(_BASE62, 60)))
        if calls == 0 or self.chance(0.8):
            parts.append(Text(self.said(self._assistant, self.number(30, 900 if calls == 0 else 300))))
        parts.extend(self.call() for _ in range(calls))
        stop = self.one_of(_STOPS)
        return MessageAdded(
            assistant(*parts, model=self.one_of(_MODELS), stop=stop), self.usage(), self.number(10, 99999) / 1e6
        )

    def returned(self) -> MessageAdded:
        return MessageAdded(tool(*(self.result() for _ in range(self.one_of((1, 1, 1, 2))))))

    def note(self) -> KnownEntry:
        """One of the small entries that go with the messages."""
        place, index = self.number(1, 80), self.number(0, 2)
        step = f"{self.value('func')}:{self.number(0, 9)}"
        notes: list[KnownEntry] = [
            ToolIntent(place, index, self.letters(_HEX, 32)),
            ToolIntent(place, index, self.letters(_HEX, 32)),
            ModelCallStarted(self.one_of(_MODELS), self.letters(_HEX, 32)),
            ModelCallStarted(self.one_of(_MODELS), self.letters(_HEX, 32)),
            StatusChanged("running"),
            StatusChanged("done"),
            StatusChanged("waiting", f"approval of {self.value('func')}"),
            StatusChanged("failed", str(self.value("error"))),
            StatusChanged("interrupted", "stopped by the user"),
            LeaseTaken(f"{self.value('word')}-{self.number(1, 9)}:{self.number(100, 99999)}", self.letters(_HEX, 32)),
            StateSet(str(self.value("var")), self.rows(1)[0]),
            StateSet(str(self.value("var")), self.value("word"), "turn"),
            StepIntent(place, index, step),
            StepOutcome(place, index, step, self.rows(1)[0]),
            WorkspaceSnapshot(self.letters(_HEX, 64), self.number(1, 500), self.number(100, 9_000_000)),
            ProviderKey(self.one_of(("claude", "openai", "codex")), str(self.value("uuid"))),
            Described(str(self.value("title")), {"project": str(self.value("word")), "env": "prod"}),
            Spend(self.usage(), self.number(10, 99999) / 1e6),
        ]
        return self.one_of(notes)

    def start(self) -> ThreadStarted:
        tools = {name: self.letters(_HEX, 32) for name in ("read_file", "write_file", "bash", "search")}
        return ThreadStarted(
            self.one_of(("assistant", "coder", "support", "research")),
            self.one_of(_MODELS),
            self._system + "\n\n" + self.prose(300),
            tools,
            {"max_turns": self.number(5, 100), "max_cost_usd": 5.0, "max_tokens": 100000},
        )

    def frame(self) -> bytes:
        """The body of a frame, as the log writes them: a part of a turn."""
        outcome = ToolOutcome(self.number(1, 80), self.number(0, 2), self.result())
        shapes: list[Callable[[], list[KnownEntry]]] = [
            lambda: [self.asked()],
            lambda: [self.asked(), StatusChanged("running")],
            lambda: [self.answered(0)],
            lambda: [self.answered(0), StatusChanged("done")],
            lambda: [self.answered(1)],
            lambda: [self.answered(self.number(1, 3)), self.note()],
            lambda: [self.returned()],
            lambda: [self.returned()],
            lambda: [self.returned(), self.note()],
            lambda: [outcome],
            lambda: [outcome, self.note()],
            lambda: [self.asked(), self.answered(1), self.returned()],
            lambda: [self.note()],
            lambda: [self.note()],
            lambda: [self.note(), self.note()],
            lambda: [self.start(), LeaseTaken("main:1", self.letters(_HEX, 32)), StatusChanged("running")],
            lambda: [Compacted(user("Summary: " + self.prose(600)), 10, self.usage(), 0.01)],
        ]
        self._clock += self.number(1_000, 3_600_000_000)
        body = msgspec.msgpack.encode((self._clock, self.one_of(shapes)()))
        return msgspec.msgpack.encode(self.blur(msgspec.msgpack.decode(body))) if self.chance(BLURRED) else body


def train(samples: Sequence[bytes]) -> bytes:
    made = zstandard.train_dictionary(SIZE, list(samples), k=K, d=D, f=20, accel=1, level=LEVEL, dict_id=NUMBER)
    return made.as_bytes()


def evaluate(dictionary: bytes, bodies: Sequence[bytes]) -> str:
    """What it is worth on frames it has not seen: ratio, and microseconds a frame."""
    loaded = zstandard.ZstdCompressionDict(dictionary)
    loaded.precompute_compress(level=LEVEL)
    lines = [f"{len(bodies)} frames of {sum(map(len, bodies)) // len(bodies)} bytes"]
    for name, given in (("without", None), ("with", loaded)):
        compressor = zstandard.ZstdCompressor(level=LEVEL, dict_data=given)
        decompressor = zstandard.ZstdDecompressor(dict_data=given)
        started = time.perf_counter()
        packed = [compressor.compress(body) for body in bodies]
        middle = time.perf_counter()
        for data in packed:
            decompressor.decompress(data)
        ended = time.perf_counter()
        ratio = sum(map(len, packed)) / sum(map(len, bodies))
        encode, decode = (middle - started) / len(bodies) * 1e6, (ended - middle) / len(bodies) * 1e6
        lines.append(f"{name:>8}: ratio {ratio:.3f}, encode {encode:.1f} us, decode {decode:.1f} us")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--force", action="store_true", help="replace a dictionary that was never released")
    options = parser.parse_args()
    if TARGET.exists() and not options.force:
        parser.error(f"{TARGET.name} exists, and logs may need it. A new dictionary takes the next number.")
    writer = Writer(SEED)
    dictionary = train([writer.frame() for _ in range(SAMPLES)])
    TARGET.write_bytes(dictionary)
    print(f"{TARGET.name}: {len(dictionary)} bytes")
    unseen = Writer(SEED + 1)
    print(evaluate(dictionary, [unseen.frame() for _ in range(2000)]))


if __name__ == "__main__":
    main()
