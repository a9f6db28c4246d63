"""Shows a model's Markdown as HTML that can do no harm.

The text comes from a model, which repeats what web pages and files told it. So the renderer makes only the elements that
are written in this module. All text is escaped: HTML in it is shown as text. A link goes to http, https or mail only, and
a picture becomes a link, because fetching it would tell another server that somebody reads this page. Each character is
looked at a fixed number of times, so that no text takes long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from markupsafe import Markup, escape

from clew._runtime.text import visible

__all__ = ["markdown"]

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r"^#{1,6}[ \t]+(.*)$")
_ITEM = re.compile(r"^([ \t]{0,20})(?:[-*+]|(\d{1,9})[.)])[ \t]+(.*)$")
_RULE = re.compile(r"^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$")
_TABLE = re.compile(r"^\|?(?:[ \t]*:?-+:?[ \t]*\|)+(?:[ \t]*:?-+:?[ \t]*)?$")
_INLINE = re.compile(
    r"(?P<code>`[^`\n]{1,2000}`)"
    r"|!?\[(?P<label>[^\[\]\n]{0,500})\]\((?P<target>[^()\s<>\"']{1,2000})\)"
    r"|(?P<bare>https?://[^\s<>\"'`)\]]{1,2000})"
    r"|\*\*(?P<strong>[^*\n]{1,2000})\*\*"
    r"|(?<![\w*])\*(?P<emphasis>[^*\s][^*\n]{0,2000})\*(?![\w*])"
)
_SAFE = re.compile(r"(?:https?://|mailto:)[^\x00-\x20\x7f]+", re.IGNORECASE)


def markdown(text: str) -> Markup:
    """Return a Markdown text as HTML: headings, lists, quotes, tables, code, emphasis and links. Everything else is shown
    as it is written, control characters as escapes."""
    return Markup("").join(_blocks(visible(text).split("\n")))


def _blocks(lines: list[str]) -> Iterator[Markup]:
    at = 0
    while at < len(lines):
        line = lines[at]
        if fence := _FENCE.match(line):
            end = next((n for n in range(at + 1, len(lines)) if lines[n].strip().startswith(fence[1])), len(lines))
            yield Markup('<pre class="code">{}</pre>').format("\n".join(lines[at + 1 : end]))
            at = end + 1
        elif not line.strip():
            at += 1
        elif _is_rule(line):
            yield Markup("<hr>")
            at += 1
        elif heading := _HEADING.match(line):
            yield Markup('<p class="md-heading">{}</p>').format(_inline(heading[1].rstrip(" \t#")))
            at += 1
        else:
            end = _end(lines, at)
            yield _block(lines[at:end])
            at = end


def _end(lines: list[str], at: int) -> int:
    """Return the index of the line after the block that begins at the line with the index `at`: a list, a quote, a
    table or a paragraph. The block ends at an empty line, or where a block of another kind begins."""
    end, kinds = at + 1, (_kind(lines[at]), "text")
    while end < len(lines) and lines[end].strip() and _kind(lines[end]) in kinds:
        end += 1
    return end


def _is_rule(line: str) -> bool:
    """Return whether a line is a horizontal rule, such as `---`. A line of 200 characters or more never counts as a
    rule, because it could take long to match such a line."""
    return len(line) < 200 and _RULE.match(line) is not None


def _kind(line: str) -> str:
    if _FENCE.match(line) or _HEADING.match(line) or _is_rule(line):
        return "other"
    return "quote" if line.lstrip().startswith(">") else "item" if _ITEM.match(line) else "text"


def _block(lines: list[str]) -> Markup:
    match _kind(lines[0]):
        case "quote":
            said = [line.lstrip().removeprefix(">").strip() for line in lines]
            return Markup("<blockquote>{}</blockquote>").format(_lines(said))
        case "item":
            return _list(lines)
    if len(lines) > 1 and "|" in lines[0] and _TABLE.match(lines[1].strip()):
        return _table(lines[0], lines[2:])
    return Markup('<p class="md-text">{}</p>').format(_lines(lines))


def _list(lines: list[str]) -> Markup:
    """Return the HTML of a Markdown list. Nested items are indented, at most three levels; the numbers of items stay as
    written."""
    rows: list[tuple[int, str, list[str]]] = []
    for line in lines:
        if item := _ITEM.match(line):
            depth = min(3, len(item[1].expandtabs(4)) // 2)
            rows.append((depth, f"{item[2]}." if item[2] else "•", [item[3]]))
        else:
            rows[-1][2].append(line.strip())
    shape = Markup('<div class="md-item md-{}"><span class="md-mark">{}</span><span>{}</span></div>')
    return Markup("").join(shape.format(depth, mark, _lines(said)) for depth, mark, said in rows)


def _table(head: str, rows: list[str]) -> Markup:
    cells = Markup("").join(Markup("<th>{}</th>").format(_inline(cell)) for cell in _cells(head))
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(Markup("<td>{}</td>").format(_inline(cell)) for cell in _cells(row))
        )
        for row in rows
    )
    return Markup('<div class="md-table"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>').format(
        cells, body
    )


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().removeprefix("|").removesuffix("|").split("|")]


def _lines(lines: list[str]) -> Markup:
    return Markup("\n").join(_inline(line) for line in lines)


def _inline(text: str) -> Markup:
    made, at = [], 0
    for found in _INLINE.finditer(text):
        made += [escape(text[at : found.start()]), _element(found)]
        at = found.end()
    return Markup("").join([*made, escape(text[at:])])


def _element(found: re.Match[str]) -> Markup:
    if found["code"]:
        return Markup("<code>{}</code>").format(found["code"][1:-1])
    if found["strong"]:
        return Markup("<strong>{}</strong>").format(found["strong"])
    if found["emphasis"]:
        return Markup("<em>{}</em>").format(found["emphasis"])
    target = found["target"] or found["bare"]
    if not _SAFE.fullmatch(target):
        return escape(found[0])
    label = found["label"] if found["target"] else target
    return Markup('<a href="{}" rel="noopener noreferrer nofollow" target="_blank">{}</a>').format(
        target, label.strip() or target
    )
