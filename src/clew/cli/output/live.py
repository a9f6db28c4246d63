"""Show a run as it happens: all of it on a terminal, the answer alone on the output of a pipe, or each event as JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TextIO

import msgspec
from rich.text import Text as Styled

from clew._runtime.text import dollars, elapsed, one_line, short_number, visible
from clew.agent import RunStarted, ToolReplayed
from clew.agent import events as of
from clew.cli.output.console import console, errors, json_line
from clew.cli.output.conversation import call_text, whole_call
from clew.messages import Json, Text
from clew.threads.views.render import plain_object

if TYPE_CHECKING:
    from rich.console import Console

    from clew.agent import Event, Question, ToolFinished
    from clew.messages import ToolResult

__all__ = ["Ended", "View", "live_view", "question_text"]

_LONGEST = 160
_STATUS = {"done": ("✓", "green"), "waiting": ("?", "yellow"), "interrupted": ("!", "magenta")}
_SLOW = 1.0
"""Seconds. The duration of a tool call is shown if the call took at least this long."""


class Ended(NamedTuple):
    """The summary of a run that has ended. Turns, tokens and cost are those of the whole thread; `seconds` is this
    run's."""

    thread_id: str
    status: str
    resume: str
    """The shell command that goes on with the thread; a Python call if only the program that made the thread can go on
    with it."""
    reason: str = ""
    output: Any = None
    questions: tuple[Question, ...] = ()
    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    seconds: float = 0.0
    drift: dict[str, Any] = {}  # noqa: RUF012 - never changed
    prompts: tuple[str, ...] = ()
    """Stored prompts that the agent gets after the user has answered its `questions`."""
    program_budget: dict[str, Any] | None = None
    """The larger budget that a Python program must give the agent to go on with the thread, because the recorded one is
    used up: its limits by name. None if no larger budget is needed, or if a shell command goes on with the thread."""
    go_on: str = ""
    """The text to print after the words `To go on`, or `To answer` if there are questions. If it is empty, a colon and
    the command in the field `resume` are printed instead."""


class View(Protocol):
    """Shows the run of an agent as it happens."""

    def begin(self, thread_id: str, words: str) -> None:
        """Show that a run begins. `words` say who works on the thread, and from which turn it goes on."""

    def show(self, event: Event) -> None:
        """Show an event that the agent has sent."""

    def note(self, text: str) -> None:
        """Show a remark to the user."""

    def pause(self) -> None:
        """End the line of text that is being streamed, because other output follows."""

    def end(self, ended: Ended) -> None:
        """Show the summary of a run that is done, waits for an answer, or was interrupted."""


@contextmanager
def live_view(json: bool) -> Iterator[View]:
    """Yield the object that shows a run: as JSON if `json` is set, otherwise in the form for a terminal or for a pipe.

    Except on a terminal, whatever tools print during the block goes to the standard error, so that it does not mix with
    the answer.
    """
    if not json and sys.stdout.isatty():
        yield LiveView(console())
        return
    out = sys.stdout
    with redirect_stdout(sys.stderr):
        yield JsonView(out) if json else LiveView(errors(), out)


class LiveView:
    """Shows a run to people, on the console `out`. If the stream `answer` is given, the final answer goes to that
    stream and not to the console."""

    def __init__(self, out: Console, answer: TextIO | None = None) -> None:
        self._out = out
        self._answer = answer
        self._line = ""
        """What the unfinished line of streamed output holds: `text`, `thinking`, or empty if there is no such line."""
        self._held: list[str] = []
        self._said = False
        """Whether text of the current turn was shown."""
        self._since: dict[str, float] = {}

    def begin(self, thread_id: str, words: str) -> None:
        self.note(f"{thread_id}: {words}")

    def show(self, event: Event) -> None:
        match event:
            case of.TextDelta(text):
                self._text(text)
            case of.ThinkingDelta(text):
                self._stream(text, "thinking", "dim italic")
            case of.TurnStarted():
                self._remark()
                self._said = False
            case of.ToolStarted(name, call_id, _, attempt):
                self._remark()
                self._since[call_id] = time.monotonic()
                again = f" · attempt {attempt}" if attempt > 1 else ""
                self._print(f"● {call_text(event)}{again}", "cyan")
            case of.ToolFinished() | of.ToolReplayed():
                self._result(event)
            case of.ToolInDoubt(name, _, becomes):
                words = {"asked": "a person is asked"}.get(becomes, becomes)
                self._print(f"! {one_line(name)} was begun before, and its outcome is not known: {words}", "magenta")
            case of.Retrying(attempt, after, reason):
                self._held = []
                self._print(f"… {one_line(reason, _LONGEST)}; attempt {attempt} in {after:.0f} s", "yellow")
            case of.Compacted():
                self._print("… the conversation is long: a summary stands for what came before", "dim")
            case of.Unwound():
                self._print("… the conversation is too long: the last turn is taken back", "dim")

    def note(self, text: str) -> None:
        self._print(text, "dim")

    def pause(self) -> None:
        if self._line:
            self._out.print()
        self._line = ""

    def end(self, ended: Ended) -> None:
        if ended.output is not None and self._answer is not None:
            self._held = []
            self.pause()
            self._answer.write(visible(_plain(ended.output)) + "\n")
            self._answer.flush()
        elif ended.output is not None and not self._said:
            self._text(_plain(ended.output))
        self._remark()
        for question in ended.questions:
            self._print(f"? {question_text(question)}", "yellow")
        for prompt in ended.prompts:
            self.note(f"On record, and asked after that is answered: {one_line(prompt, _LONGEST)}")
        for words in _drift(ended.drift):
            self.note(words)
        sign, style = _STATUS[ended.status]
        said = ended.status + (f": {one_line(ended.reason, _LONGEST)}" if ended.reason else "")
        tokens = f"{short_number(ended.input_tokens + ended.output_tokens)} tokens"
        turns = f"{ended.turns} turn{'' if ended.turns == 1 else 's'}"
        self._print(
            " · ".join([f"{sign} {said}", turns, tokens, dollars(ended.cost_usd), elapsed(ended.seconds)]), style
        )
        words = ended.go_on or f": {ended.resume}"
        self._print_command(f"{'To answer' if ended.questions else 'To go on'}{words}")

    def _print_command(self, command: str) -> None:
        """Print a line that contains a command. The line is not wrapped. Control characters are not removed, because
        `clew.advice`, which makes such commands, has quoted them."""
        self.pause()
        self._out.print(Styled(command, "dim"), soft_wrap=True)

    def _text(self, text: str) -> None:
        self._said = True
        if self._answer is None:
            self._stream(text, "text", "")
        else:
            self._held.append(text)

    def _remark(self) -> None:
        """Print the text that was held back because it could have been the final answer. Called when more output
        follows, because the text is then not the answer."""
        held, self._held = "".join(self._held), []
        if held.strip():
            self._stream(held.strip(), "text", "")
        self.pause()

    def _stream(self, text: str, kind: str, style: str) -> None:
        if self._line != kind:
            self.pause()
            text = text.lstrip("\n")
        if shown := visible(text):
            self._line = "" if shown.endswith("\n") else kind
            self._out.print(Styled(shown, style), end="", soft_wrap=True)

    def _result(self, event: ToolFinished | ToolReplayed) -> None:
        took = time.monotonic() - self._since.pop(event.call_id, time.monotonic())
        facts = ["from the record"] if isinstance(event, ToolReplayed) else [elapsed(took)] if took >= _SLOW else []
        words = one_line(_result_words(event.result), _LONGEST) or "(nothing)"
        sign, style = ("✗", "red") if event.result.is_error else ("↳", "dim")
        self._print(f"  {sign} {one_line(event.name)}: {words}" + "".join(f" · {fact}" for fact in facts), style)

    def _print(self, text: str, style: str) -> None:
        self.pause()
        self._out.print(Styled(visible(text), style), soft_wrap=True)


class JsonView:
    """Writes a run as JSON, one object on each line: first `{"type": "started", …}`, then each event as it comes, and
    at the end `{"type": "result", …}`."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def begin(self, thread_id: str, words: str) -> None:
        self._write({"type": "started", "thread_id": thread_id})

    def show(self, event: Event) -> None:
        if isinstance(event, RunStarted):  # `begin` has written the thread's id
            return
        self._write({"type": event.__struct_config__.tag, **plain_object(event)})

    def note(self, text: str) -> None:
        self._write({"type": "note", "text": text})

    def pause(self) -> None:
        pass

    def end(self, ended: Ended) -> None:
        questions = [{"id": question.id, **msgspec.to_builtins(question)} for question in ended.questions]
        fields = ended._asdict()
        del fields["go_on"]
        self._write({"type": "result", **fields, "questions": questions})

    def _write(self, value: dict[str, Any]) -> None:
        self._out.write(json_line(value) + "\n")
        self._out.flush()


def question_text(question: Question) -> str:
    """Return the text of a question that the agent asks. If the question is about a tool call, the call follows, with
    all its arguments. Nothing is cut: what the user approves must be on the screen."""
    about = f" {whole_call(question.tool, question.arguments)}" if question.kind != "question" else ""
    return one_line(question.text) + about


def _drift(drift: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each thing that has changed since the thread was last worked on: the files, the turn that
    the files belong to, changed tools, and new tools. `drift` maps the name of what changed, such as `tools`, to a pair
    of its recorded and its present value.

    Options that changed and tools that are missing are left out, because the user has read about them before the run.
    """
    if "files" in drift:
        yield "Its files were changed since the last turn; they are on record as they are now."
    if "files_turn" in drift:
        now, files = drift["files_turn"]
        yield f"Its files are as they were at turn {files}, but it is at turn {now}. The model gets a note about this."
    if "changed tools" in drift:
        yield f"Tools that have changed: {', '.join(drift['changed tools'][1])}."
    if "tools" in drift and (new := sorted(set(drift["tools"][1]) - set(drift["tools"][0]))):
        yield f"New tools: {', '.join(new)}."


def _result_words(result: ToolResult) -> str:
    parts = []
    for block in result.content:
        if isinstance(block, Text):
            parts.append(block.text)
        else:
            parts.append(_plain(block.value) if isinstance(block, Json) else f"[{block.__struct_config__.tag}]")
    return "\n".join(parts)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
