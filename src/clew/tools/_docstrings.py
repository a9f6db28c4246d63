"""What a docstring says of a function and of its parameters, in the styles of Google, NumPy and Sphinx."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

__all__ = ["read_docstring"]

_SPHINX = re.compile(r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*?\s)?\*{0,2}(\w+)\s*:\s*(.*)")
_SPHINX_OTHER = re.compile(r":\w+[^:]*:")
_GOOGLE = re.compile(r"(Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Other Parameters):\s*$")
_GOOGLE_OTHER = re.compile(
    r"(Returns?|Yields?|Raises|Examples?|Notes?|Attributes|See Also|Todo|Warnings?|Warns|References):\s*$"
)
_GOOGLE_ITEM = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY_ITEM = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")
_NUMPY_OURS = {"parameters", "other parameters"}
_RULE = re.compile(r"(-{3,}|={3,})\s*$")


def read_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """The first paragraph on one line, and what is said of each parameter."""
    lines = inspect.cleandoc(text or "").splitlines()
    return _first_paragraph(lines), {**_numpy(lines), **_google(lines), **_sphinx(lines)}


def _first_paragraph(lines: list[str]) -> str:
    found: list[str] = []
    for number, line in enumerate(lines):
        underlined = number + 1 < len(lines) and _RULE.match(lines[number + 1])
        if (
            not line.strip()
            or _GOOGLE.match(line)
            or _GOOGLE_OTHER.match(line)
            or _SPHINX_OTHER.match(line)
            or underlined
        ):
            break
        found.append(line.strip())
    return " ".join(found)


def _google(lines: list[str]) -> dict[str, str]:
    return _items(_section(lines), _GOOGLE_ITEM)


def _section(lines: list[str]) -> Iterator[str]:
    """The indented lines under a heading that announces parameters."""
    inside = False
    for line in lines:
        if not line.startswith((" ", "\t")) and line.strip():
            inside = bool(_GOOGLE.match(line))
        elif inside:
            yield line


def _items(lines: Iterator[str], pattern: re.Pattern[str]) -> dict[str, str]:
    """Names with their text, which goes on in the lines that are indented further than the name."""
    found: dict[str, list[str]] = {}
    margin, name = -1, ""
    for line in lines:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        if margin < 0:
            margin = indent
        match = pattern.match(line.strip()) if indent <= margin else None
        if match:
            name = match[1]
            found[name] = [match[2]]
        elif name and indent > margin:
            found[name].append(line.strip())
        else:
            name = ""
    return _joined(found)


def _numpy(lines: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    inside, names = False, list[str]()
    for number, line in enumerate(lines):
        if _RULE.match(line):
            continue
        if number + 1 < len(lines) and line.strip() and _RULE.match(lines[number + 1]):
            inside, names = line.strip().lower() in _NUMPY_OURS, []
        elif inside and line.startswith((" ", "\t")):
            for name in names:
                found[name].append(line.strip())
        elif inside and (match := _NUMPY_ITEM.match(line)):
            names = [name.strip().lstrip("*") for name in match[1].split(",")]
            found.update({name: [] for name in names})
    return _joined(found)


def _sphinx(lines: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        match = _SPHINX.match(line)
        if match:
            name = match[1]
            found[name] = [match[2]]
        elif name and line.startswith((" ", "\t")):
            found[name].append(line.strip())
        else:
            name = ""
    return _joined(found)


def _joined(found: dict[str, list[str]]) -> dict[str, str]:
    texts = {name: " ".join(part for part in parts if part).strip() for name, parts in found.items()}
    return {name: text for name, text in texts.items() if text}
