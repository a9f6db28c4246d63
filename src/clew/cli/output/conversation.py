"""Print a conversation for people: prompts, text, thinking, tool calls with results, and events such as crashes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from clew._runtime.text import clock, cut, dollars, elapsed, one_line, plural, short_number, size, visible
from clew.cli.deferred import log, messages, msgspec, prompts, render, rich_text, timelines
from clew.cli.output.console import print_json

if TYPE_CHECKING:
    from rich.console import Console

    from clew.messages import Block, Message
    from clew.threads.views.entries import Line
    from clew.threads.views.timeline import TimelineCall, TimelineTurn

__all__ = ["Pen", "call_text", "entry_text", "in_order", "json_text", "print_entry", "said_lines", "whole_call"]


_LINES = 8
_LONGEST_LINE = 400
"""The most characters that are shown of each line of a result or of thinking, without --full. `_LINES` is the most
lines."""
_ARGUMENT, _ARGUMENTS = 60, 120

_MARKS = {
    "crashed": ("✗", "bold red"),
    "failed": ("✗", "red"),
    "interrupted": ("!", "magenta"),
    "taken over": ("!", "magenta"),
    "refused": ("!", "yellow"),
    "waiting": ("?", "yellow"),
    "queued": ("…", "blue"),
    "answered": ("✓", "yellow"),
    "rewound": ("↶", "yellow"),
    "resumed": ("↻", "green"),
    "done": ("✓", "green"),
}
_CALLS = {
    "done": ("✓", "green"),
    "replayed": ("✓", "green"),
    "running": ("…", "cyan"),
    "waiting": ("?", "yellow"),
    "in doubt": ("!", "bold red"),
    "not started": ("·", "dim"),
}


class Pen:
    """Prints parts of a conversation on a console. Removes escape sequences from them, so that they cannot control the
    terminal."""

    def __init__(self, out: Console, *, full: bool = False) -> None:
        self._out = out
        self._full = full
        self._last = ""
        """The kind of the last printed line: `text`, `mark` (an event such as a crash), or empty for an empty line."""

    def line(self, text: str = "", style: str = "", indent: int = 0) -> None:
        """Print a line with `indent` spaces in front. On a terminal a long line is wrapped, each part with these
        spaces."""
        self._last = "text" if text else ""
        whole = rich_text.Text(text, style)
        pad = " " * indent
        if not self._out.is_terminal:
            self._out.print(rich_text.Text(pad).append_text(whole), soft_wrap=True)
            return
        for wrapped in whole.wrap(self._out, max(20, self._out.width - indent)) or [whole]:
            wrapped.rstrip()
            self._out.print(rich_text.Text(pad).append_text(wrapped), soft_wrap=True)

    def gap(self) -> None:
        """Print an empty line, unless the last printed line is empty."""
        if self._last:
            self.line()

    def piece(self, text: str, style: str = "") -> None:
        """Print a part of a line, without a line break, because the rest of the line follows."""
        self._last = "" if text.endswith("\n\n") else "text"
        self._out.print(rich_text.Text(visible(text), style), end="", soft_wrap=True)

    def command(self, label: str, words: str, style: str = "bold") -> None:
        """Print a label and a command on one line. The line is not wrapped, so that the command can be copied. Control
        characters are not removed, because `clew.advice`, which makes such commands, has quoted them."""
        self._last = "text"
        self._out.print(rich_text.Text(label + words, style), soft_wrap=True)

    def text(self, text: str, style: str = "", indent: int = 2) -> None:
        """Print a text of several lines, each with `indent` spaces in front."""
        for line in visible(text).strip("\n").expandtabs(4).split("\n"):
            self.line(line, style, indent)

    def happened(self, what: TimelineTurn | timelines.Mark) -> None:
        """Print `what`: a turn of a timeline, or a mark, which is an event such as a crash."""
        if isinstance(what, timelines.Mark):
            self.mark(what)
        else:
            self.turn(what)

    def mark(self, mark: timelines.Mark) -> None:
        """Print an event between turns, such as a crash or a resume, with its time."""
        sign, style = _MARKS.get(mark.kind, ("─", "dim"))
        when = f" · {clock(mark.at)}" if mark.at is not None else ""
        pause = f" after {elapsed(mark.seconds)}" if mark.seconds is not None and mark.seconds >= 1 else ""
        if self._last != "mark":
            self.gap()
        self.line(f"{sign} {one_line(mark.text)}{pause}{when}", style)
        self._last = "mark"

    def prompt(self, message: Message, style: str = "") -> None:
        """Print a message that stands before a turn. Its first line begins with `> ` if the user wrote the message, and
        with `· ` if it is a system message or a note, which is a message from Clew to the model."""

        by_user = isinstance(message, messages.User) and not prompts.is_note(message)
        style = style or ("bold" if by_user else "dim")
        first, *rest = visible("\n".join(map(_words, message.content))).strip("\n").expandtabs(4).split("\n")
        self.gap()
        self.line(("> " if by_user else "· ") + first, style)
        for line in rest:
            self.line(line, style, 2)

    def turn(self, turn: TimelineTurn) -> None:
        """Print a whole turn: its prompts, heading, text, and calls with their results. A turn that was taken back by a
        rewind is dim."""
        style = "dim" if turn.rewound else ""
        for message in turn.prompts:
            self.prompt(message, style)
        self.heading(turn)
        self.words(turn.blocks, turn.number, style)
        for call in turn.calls:
            self.call(call, style)
            self.result(call, turn.number, style)

    def heading(self, turn: TimelineTurn) -> None:
        """Print the number, time, duration, tokens and cost of a turn, as far as they are known."""
        self.gap()
        facts = [f"Turn {turn.number}"]
        facts += ["rewound"] if turn.rewound else []
        facts += ["from before this log"] if turn.inherited else []
        facts += [clock(turn.started_at)] if turn.started_at is not None else []
        facts += [elapsed(turn.seconds)] if turn.seconds is not None else []
        if turn.usage is not None:
            facts.append(f"{short_number(turn.usage.input_tokens + turn.usage.output_tokens)} tokens")
            facts += [dollars(turn.cost_usd)] if turn.cost_usd is not None else []
        self.line(" · ".join(facts), "dim")

    def words(self, blocks: Iterable[Block], turn: int, style: str = "") -> None:
        """Print the text and thinking of a response, without its tool calls. Long thinking is cut; `turn` is the number
        of the turn, for the printed command that shows all of the thinking."""
        for block in blocks:
            if isinstance(block, messages.Thinking):
                self.shortened(_words(block), turn, "dim italic")
            elif not isinstance(block, messages.ToolCall) and (text := _words(block)):
                self.text(text, style)

    def asked(self, call: TimelineCall) -> None:
        """Print the name and arguments of a tool call that the model has asked for, but not its result."""
        self.line(f"→ {call_text(call.call)}", "cyan", 2)

    def call(self, call: TimelineCall, style: str = "") -> None:
        """Print a tool call with its status, duration and number of attempts, without its result."""
        sign, colour = _CALLS[call.status]
        if call.result is not None and call.result.is_error:
            sign, colour = "✗", "red"
        facts: list[str] = [] if call.status == "done" else [call.status]
        facts += [f"attempt {call.attempts}"] if call.attempts > 1 else []
        facts += ["was in doubt"] if call.was_in_doubt and call.status != "in doubt" else []
        facts += [elapsed(call.seconds)] if call.seconds is not None else []
        self.line(f"{sign} {call_text(call.call)}" + "".join(f" · {fact}" for fact in facts), style or colour, 2)

    def result(self, call: TimelineCall, turn: int, style: str = "") -> None:
        if call.result is not None:
            text = "\n".join(_words(part) for part in call.result.content)
            self.shortened(text, turn, style or ("red" if call.result.is_error else "dim"), indent=4)

    def shortened(self, text: str, turn: int, style: str, indent: int = 2) -> None:
        """Print a text, but at most its first `_LINES` lines and `_LONGEST_LINE` characters of each. If something is
        left out, also print the options with which `clew show` prints it: `--turn`, with the number `turn`, and
        `--full`. A pen made with `full` prints the whole text."""
        lines = visible(text).strip("\n").expandtabs(4).split("\n")
        shown = lines if self._full else [cut(line, _LONGEST_LINE) for line in lines[:_LINES]]
        for line in shown:
            self.line(line, style, indent)
        if shown != lines:
            left = len(lines) - len(shown)
            more = plural(left, "more line") if left else "it is longer"
            self.line(f"… {more}: --turn {turn} --full", "dim", indent)


def in_order(turns: Iterable[TimelineTurn], marks: Iterable[timelines.Mark]) -> list[TimelineTurn | timelines.Mark]:
    """Return turns and marks, which are events such as a crash, in one list in the order in which they happened."""
    placed: list[tuple[int, int, TimelineTurn | timelines.Mark]] = [(turn.position + 1, 0, turn) for turn in turns]
    placed += [(mark.position, 1, mark) for mark in marks]
    return [what for _, _, what in sorted(placed, key=lambda each: each[:2])]


def call_text(call: Any) -> str:
    """Return a tool call on one line, with long arguments cut: `look_up(city="Paris")`."""
    given = call.arguments
    if isinstance(given, dict):
        text = ", ".join(f"{name}={cut(json_text(value), _ARGUMENT)}" for name, value in given.items())
    else:
        text = one_line(str(given))
    return f"{one_line(call.name)}({cut(one_line(text), _ARGUMENTS)})"


def whole_call(name: str, arguments: Any) -> str:
    """Return a tool call on one line with nothing cut, for a user who has to decide about it. The values are JSON, so
    every space in them stays; control characters are made visible."""
    if isinstance(arguments, dict):
        given = ", ".join(f"{each}={json_text(value)}" for each, value in arguments.items())
    else:
        given = json_text(arguments)
    return visible(f"{name}({given})").replace("\n", "\\n").replace("\t", "\\t")


def said_lines(message: Message, longest: int) -> Iterator[str]:
    """Yield a line for each block of a message. It begins with what the block is, such as `call:`, `result:` or
    `user:`, and has at most `longest` characters of the block's text."""
    for block in message.content:
        if isinstance(block, messages.ToolCall):
            yield f"call: {call_text(block)}"
        elif isinstance(block, messages.ToolResult):
            words = " ".join(_words(part) for part in block.content)
            yield f"{'error' if block.is_error else 'result'}: {one_line(words, longest)}"
        else:
            role = str(message.__struct_config__.tag)
            named = "thinking" if isinstance(block, messages.Thinking) else role
            is_text = isinstance(block, messages.Text | messages.Thinking)
            yield f"{named}: {one_line(_words(block), longest) if is_text else _words(block)}"


def _words(block: Any) -> str:
    """Return the text of a block, or a description in brackets for one without text, such as an image."""
    if isinstance(block, messages.Text | messages.Thinking):
        return block.text or ("(not shown by the vendor)" if isinstance(block, messages.Thinking) else "")
    if isinstance(block, messages.Json):
        return json_text(block.value)
    if isinstance(block, messages.Image | messages.File):
        named = block.name if isinstance(block, messages.File) else ""
        where = size(len(block.data)) if block.data is not None else block.url or block.file_id or ""
        facts = ", ".join(one_line(fact) for fact in (named, block.media_type, where) if fact)
        return f"[{'image' if isinstance(block, messages.Image) else 'file'}: {facts}]"
    if isinstance(block, messages.Opaque):
        return f"[something of {one_line(block.dialect)} that this version does not know]"
    return ""


def json_text(value: Any) -> str:
    """Return a value from a log as JSON on one line. For what JSON cannot hold, the text is its `repr`."""
    return msgspec.json.encode(render.plain_object(value), enc_hook=repr).decode()


_WORDS, _LONGEST = 120, 160
_PLACES = frozenset({"message", "index", "turn"})
"""Fields of entries that are printed even if they are 0, because 0 is a position there and not an empty value."""


def print_entry(line: Line) -> None:
    """Print an entry of a log as a line of JSON, with the number of its frame, its time and its kind."""
    print_json(line.plain())


def entry_text(line: Line) -> str:
    """Return an entry of a log on one line: the number of its frame, its time, its kind, and the beginning of its
    content."""
    if isinstance(line.entry, log.MessageAdded):
        said = " · ".join(said_lines(line.entry.message, _WORDS))
    else:
        said = msgspec.json.encode(_filled(line.fields()), enc_hook=str).decode()[1:-1]
    moment = f"{line.at.astimezone():%Y-%m-%d %H:%M:%S.%f}"[:-3]
    return f"{line.frame:>5}  {moment}  {line.kind:<11} {cut(one_line(said), _LONGEST)}"


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an entry without those that are empty (None, 0, or an empty text or list), in nested objects
    too. False is kept, and 0 is kept in the fields `message`, `index` and `turn`, where it is a position."""
    said = {name: _filled(value) if isinstance(value, dict) else value for name, value in fields.items()}
    return {name: value for name, value in said.items() if value or value is False or name in _PLACES}
