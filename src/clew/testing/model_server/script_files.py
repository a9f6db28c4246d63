"""Scripts as JSON files, for model servers that are started from the command line. A script says what the model
answers."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from clew.errors import InvalidInput
from clew.log import Usage
from clew.messages import Opaque, ToolCall, plain_text
from clew.models.base import ModelRequest
from clew.testing.model_server.faults import Fault
from clew.testing.model_server.scripts import By, Script, turns_in
from clew.testing.replies import Reply, call, reply, say, think

__all__ = ["ScriptFile", "read_script"]


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: Any = {}
    id: str = ""


class _Counted(msgspec.Struct, forbid_unknown_fields=True):
    """The token counts of a response in a script file: a JSON object with the field names of `Usage`."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


class _Response(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One response in a script file. The model's thinking comes first, then its text, then its tool calls. If `fault`
    is given, something goes wrong instead of the response, and the other fields are not used."""

    think: str | None = None
    say: str | None = None
    call: _Call | None = None
    calls: list[_Call] = []
    opaque: dict[str, Any] | None = None
    """A content block or item in a vendor's own form: `{"dialect": "openai-responses", "value": {…}}`."""
    usage: _Counted | None = None
    stop: str = ""
    model: str = ""
    delay: float = 0
    fault: Fault | None = None

    def read(self) -> Reply | Fault:
        if self.fault is not None:
            return self.fault
        parts: list[Any] = []
        parts += [think(self.think)] if self.think is not None else []
        parts += [say(self.say)] if self.say is not None else []
        parts += [Opaque(self.opaque["dialect"], self.opaque["value"])] if self.opaque else []
        for asked in [*([self.call] if self.call else []), *self.calls]:
            parts.append(
                ToolCall(asked.id, asked.name, asked.arguments) if asked.id else call(asked.name, asked.arguments)
            )
        usage = Usage(*msgspec.structs.astuple(self.usage)) if self.usage else None
        return reply(*parts, usage=usage, stop=self.stop, model=self.model, delay=self.delay)


class _Rule(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A rule of a script file: it has responses of its own for certain requests, for example those that ask for a title
    of the conversation. The rule applies to a request if the model's name matches `model`, a pattern with `*` and
    `?`, and the system prompt or a message contains the text `contains`."""

    responses: list[str | _Response]
    model: str = "*"
    """A pattern with `*` and `?` that the model's name must match."""
    contains: str = ""
    """A text that the system prompt or a message must contain."""
    repeat: bool = False
    """Whether the last of the rule's responses is given again when there are no more. If False, such a request gets an
    error."""


class ScriptFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The content of a script file, which says what a model server answers. A file that is only a JSON list is a list
    of `responses`; all other fields then have their defaults."""

    responses: list[str | _Response] = []
    rules: list[_Rule] = []
    """Rules that are tried in order before `responses`. The first rule that fits a request answers it."""
    by: By = "turns"
    faults: dict[int, Fault] = {}
    """What goes wrong with single model calls: a fault by the number of the call, counted from 1 since the server
    started."""
    fault: Fault | None = None
    """What goes wrong with all calls that `faults` does not name."""
    key: str | None = None
    delay: float = 0
    context_window: int | None = None
    models: tuple[str, ...] = ("scripted",)
    strict: bool = True

    def script(self) -> Any:
        """Return this file's content as a script in the form that `ModelServer` takes: the list of its responses or, if
        the file has rules, a function that chooses a response for each request."""
        plain = [_read(response) for response in self.responses]
        if not self.rules:
            return plain
        rules = [(rule, [_read(response) for response in rule.responses]) for rule in self.rules]

        async def respond(request: ModelRequest) -> Any:
            for rule, responses in rules:
                if _fits(rule, request):
                    number = turns_in(request)
                    number = min(number, len(responses) - 1) if rule.repeat else number
                    return await Script(responses).response(request, number)
            return await Script(plain).response(request, turns_in(request))

        return respond


def _read(response: str | _Response) -> str | Reply | Fault:
    return response if isinstance(response, str) else response.read()


def _fits(rule: _Rule, request: ModelRequest) -> bool:
    if not fnmatchcase(str(request.options.get("model", "")), rule.model):
        return False
    return any(rule.contains in text for text in (request.system, *map(plain_text, request.messages)))


def read_script(path: Path) -> ScriptFile:
    """Read a script file, which is JSON and says what a model server answers, and return its content. Raises
    `InvalidInput`, which says what is wrong in the file."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror or error}") from None
    try:
        if text.lstrip().startswith(b"["):
            return ScriptFile(responses=msgspec.json.decode(text, type=list[str | _Response]))
        return msgspec.json.decode(text, type=ScriptFile)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{path} is not a script: {error}") from None
