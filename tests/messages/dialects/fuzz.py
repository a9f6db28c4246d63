"""Payloads that nobody meant: random JSON in the vendors' words, read by every dialect.

    python -m tests.messages.dialects.fuzz 1000000 [seed]

Nothing but a ClewError may come of it, and what could be read can be written, and is a fixed point then.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any, cast

from clew.errors import ClewError
from clew.messages.dialects import DIALECTS, Dialect, from_dialect, to_dialect

_KEY_WORDS = """type role content text id call_id tool_call_id tool_use_id name input output arguments function custom source
data media_type url file_id title image_url file file_data filename file_url detail summary encrypted_content thinking
signature is_error status message messages system choices refusal tool_calls audio annotations citations cache_control
extra model finish_reason stop_reason phase contents parts candidates systemInstruction inlineData fileData fileUri
mimeType functionCall functionResponse args response thought thoughtSignature executableCode error"""
_TEXT_WORDS = """text image document thinking redacted_thinking tool_use tool_result base64 url file content image_url
input_audio refusal function custom message reasoning function_call function_call_output custom_tool_call
custom_tool_call_output input_text output_text input_image input_file summary_text user assistant system developer tool
model image/png application/pdf text/plain https://x.example data:image/png;base64,QQ== data:;base64,= QQ== QQ file_1 file-1
auto completed a b {} {"a":1} [attachment"""
_KEYS = _KEY_WORDS.split()
_TEXTS = [
    *_TEXT_WORDS.split(),
    "",
    " ",
    "[attachment 1]",
    "[attachment 1: see the user message after the tool results]",
    "\ud800",
    "\x00",
]
_ODDS: list[Any] = [None, True, False, 0, -1, 2**70, 1.5, float("nan"), float("inf"), b"bytes", (), {1: 2}]
_FIRST = {
    "anthropic": ["messages", "system"],
    "openai-chat": ["choices", "messages"],
    "openai-responses": ["output"],
} | {"gemini": ["contents", "candidates", "systemInstruction"]}


def any_json(rng: random.Random, depth: int) -> Any:
    roll = rng.random()
    if depth <= 0 or roll < 0.35:
        return rng.choice(_TEXTS) if rng.random() < 0.85 else rng.choice(_ODDS)
    if roll < 0.6:
        return [any_json(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice(_KEYS): any_json(rng, depth - 1) for _ in range(rng.randrange(1, 6))}


def any_payload(rng: random.Random, dialect: str) -> Any:
    """Random JSON, more often than not in the shape that gets past the first checks."""
    roll = rng.random()
    if roll < 0.1:
        return any_json(rng, 5)
    messages = [_any_message(rng, dialect) for _ in range(rng.randrange(5))]
    return messages if roll < 0.8 else {rng.choice(_FIRST[dialect]): messages}


def _any_message(rng: random.Random, dialect: str) -> Any:
    if dialect == "gemini":
        return _any_content(rng)
    role = rng.choice(["user", "assistant", "system", "tool", "developer", "function"])
    parts = [_any_part(rng, dialect) for _ in range(rng.randrange(4))]
    message: dict[str, Any] = {"role": role, "content": parts if rng.random() < 0.8 else rng.choice(_TEXTS)}
    if dialect == "openai-chat" and rng.random() < 0.5:
        message["tool_calls"] = [_any_part(rng, dialect) for _ in range(rng.randrange(3))]
        message["tool_call_id"] = rng.choice(["a", "b", ""])
    if dialect == "openai-responses" and rng.random() < 0.6:
        return _any_part(rng, dialect)
    return _spoil(rng, message)


def _any_part(rng: random.Random, dialect: str) -> dict[str, Any]:
    """Most of the keys that some kind of part needs, so that many parts are whole."""
    part = {key: any_json(rng, 2) for key in rng.sample(_KEYS, rng.randrange(6))}
    part |= {"type": rng.choice(_TEXTS[:35]), "text": rng.choice(_TEXTS), "thinking": "hm", "signature": "s"}
    part |= {"id": rng.choice(["a", "b", ""]), "call_id": rng.choice(["a", "b"]), "tool_use_id": rng.choice(["a", "b"])}
    part |= {"name": rng.choice(_TEXTS), "input": {}, "summary": [], "arguments": rng.choice(_TEXTS), "output": "x"}
    part |= {"source": _source(rng), "image_url": {"url": rng.choice(_TEXTS)}, "file": {"file_id": rng.choice(_TEXTS)}}
    part["function"] = {"name": "f", "arguments": rng.choice(_TEXTS)}
    if rng.random() < 0.5:
        part["role"] = rng.choice(["user", "assistant", "system"])
    if rng.random() < 0.5:
        part["content"] = [{"type": rng.choice(_TEXTS[:35]), "text": rng.choice(_TEXTS), "source": _source(rng)}]
    return cast(dict[str, Any], _spoil(rng, part))


def _any_content(rng: random.Random) -> Any:
    content: dict[str, Any] = {"role": rng.choice(["user", "model"])}
    content["parts"] = [_any_gemini_part(rng) for _ in range(rng.randrange(4))]
    return _spoil(rng, content if rng.random() < 0.9 else {"content": content, "finishReason": "STOP"})


def _any_gemini_part(rng: random.Random) -> Any:
    data: list[dict[str, Any]] = [
        {"text": rng.choice(_TEXTS), "thought": rng.choice([True, False, None, "x"])},
        {"inlineData": _spoil(rng, {"mimeType": rng.choice(_TEXTS), "data": rng.choice(_TEXTS)})},
        {"fileData": _spoil(rng, {"mimeType": rng.choice(_TEXTS), "fileUri": rng.choice(_TEXTS)})},
        {"functionCall": _spoil(rng, {"id": rng.choice(["a", "b", ""]), "name": rng.choice(_TEXTS), "args": {}})},
        {"functionResponse": _spoil(rng, {"id": rng.choice(["a", ""]), "name": "b", "response": any_json(rng, 2)})},
        {"functionResponse": {"name": "b", "response": {rng.choice(["output", "error"]): any_json(rng, 2)}}},
        {rng.choice(_KEYS): any_json(rng, 2)},
    ]
    beside = {"thoughtSignature": rng.choice(_TEXTS)} if rng.random() < 0.3 else {}
    return _spoil(rng, {**rng.choice(data), **beside})


def _source(rng: random.Random) -> dict[str, Any]:
    kind = rng.choice(["base64", "url", "file", "text", "content"])
    keys = {"base64": ("media_type", "data"), "url": ("url",), "file": ("file_id",), "text": ("media_type", "data")}
    return {"type": kind, **{key: rng.choice(_TEXTS) for key in keys.get(kind, ("content",))}}


def _spoil(rng: random.Random, part: dict[str, Any]) -> Any:
    roll = rng.random()
    if roll < 0.1 and part:
        del part[rng.choice(list(part))]
    elif roll < 0.3 and part:
        part[rng.choice(list(part))] = any_json(rng, 2)
    return part


def try_one(rng: random.Random) -> bool:
    """Whether a random payload could be read. Raises if anything but a ClewError came of it."""
    dialect = cast(Dialect, rng.choice(DIALECTS))
    payload = any_payload(rng, dialect)
    try:
        conversation = from_dialect(payload, dialect)
    except ClewError:
        return False
    for other in DIALECTS:
        to_dialect(conversation, cast(Dialect, other))
    written = to_dialect(conversation, dialect)
    assert to_dialect(from_dialect(written, dialect), dialect) == written
    return True


def main(count: int, seed: int) -> None:
    started, read = time.monotonic(), 0
    for number in range(count):
        try:
            read += try_one(random.Random(f"{seed}/{number}"))
        except BaseException:
            print(f"input {number} of seed {seed}", file=sys.stderr)
            raise
    print(f"{count} inputs, {read} of them read, {time.monotonic() - started:.0f} s: nothing but ClewError")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
