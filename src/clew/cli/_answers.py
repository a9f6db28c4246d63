"""What a person answers to a thread that waits: on the command line, or at the terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from clew.cli.live import question_text

if TYPE_CHECKING:
    from clew.agent import Question

__all__ = ["ask", "read_answer", "write_answer"]

_WANTED = {
    "approval": "y, n, or why not; nothing leaves it open: ",
    "question": "Your answer; nothing leaves it open: ",
    "in doubt": "run, or what it came to; nothing leaves it open: ",
}
_YES_OR_NO = {"y": True, "yes": True, "n": False, "no": False}


def read_answer(text: str) -> Any:
    """JSON where it is JSON, and else the words themselves: `yes`, `true`, `{"seats": 2}`; `"42"` is a text."""
    import json

    from clew.errors import InvalidInput

    if not text.strip():
        raise InvalidInput("--answer is empty. Give a text, or JSON.")
    try:
        found = json.loads(text)
    except ValueError:
        return text
    if found is None:
        raise InvalidInput("--answer null is no answer. Give a text, or any other JSON.")
    return found


def write_answer(answer: Any) -> str:
    """Write an answer as --answer takes it: `read_answer` gives the same again."""
    import json

    from clew.errors import InvalidInput

    try:
        if isinstance(answer, str) and read_answer(answer) == answer:
            return answer
    except InvalidInput:
        pass
    return json.dumps(answer, ensure_ascii=False)


def ask(questions: Collection[Question], json: bool) -> Any:
    """A person's answers at this terminal, by the questions' ids; None if there is no terminal, or nobody answers."""
    if json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    answers = {}
    for question in questions:
        if len(questions) > 1:
            sys.stderr.write(f"{question_text(question)}\n")
        sys.stderr.write(_WANTED[question.kind])
        sys.stderr.flush()
        said = sys.stdin.readline().strip()
        if not said:
            return None
        answers[question.id] = _meant(question, said)
    return answers


def _meant(question: Question, said: str) -> Any:
    """Of a call that is to be approved, y and n are yes and no; what else is said is the reason why not."""
    return _YES_OR_NO.get(said.lower(), said) if question.kind == "approval" else read_answer(said)
