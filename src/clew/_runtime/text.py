"""Formats values for people: times, sizes, money, counts, and text made safe for a terminal.

The command line and the inspector (the web page that shows threads) both use these functions, so they show the same
value in the same form.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

__all__ = [
    "UNSEEN",
    "ago",
    "clock",
    "cut",
    "dollars",
    "elapsed",
    "one_line",
    "plural",
    "short_number",
    "size",
    "visible",
    "visible_json",
]


def ago(moment: datetime, now: datetime | None = None) -> str:
    """Return how long ago `moment` was, in the largest unit that fits: `12s`, `5m`, `3h`, `2d`. A moment in the future
    gives `0s`. `now` is the current time unless given."""
    seconds = max(0, int(((now or datetime.now(UTC)) - moment).total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def clock(moment: datetime, now: datetime | None = None) -> str:
    """Return the local time of `moment`: `14:05:09`, or `2025-01-31 14:05:09` if it is not today. `now` is the current
    time unless given."""
    local = moment.astimezone()
    same_day = local.date() == (now or datetime.now(UTC)).astimezone().date()
    return f"{local:%H:%M:%S}" if same_day else f"{local:%Y-%m-%d %H:%M:%S}"


def elapsed(seconds: float) -> str:
    """Return a length of time in at most two units: `30ms`, `1.5s`, `12s`, `4m 10s`, `2h 5m`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60}s"
    return f"{whole // 3600}h {whole % 3600 // 60}m"


def dollars(cost: float | None) -> str:
    """Return an amount of US dollars: `$1.25`, `$0.0042` below a cent, and `?` for None, a cost that is not known."""
    return "?" if cost is None else f"${cost:.4f}" if 0 < cost < 0.01 else f"${cost:.2f}"


def short_number(number: int) -> str:
    """Return a count, for example of tokens, in few characters. From a thousand on, it has one decimal: `950`, `12.3k`,
    `4.5M`."""
    for unit, length in (("M", 1_000_000), ("k", 1_000)):
        if number >= length:
            return f"{number / length:.1f}{unit}"
    return str(number)


def size(number: int) -> str:
    """Return a number of bytes in the largest unit that fits: `812 B`, `1.5 KiB`, `3.0 MiB`, `2.1 GiB`."""
    value = float(number)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def plural(number: int, noun: str) -> str:
    """Return a number with its noun, to which an s is added unless the number is 1: `1 file`, `2 files`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


UNSEEN = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""A pattern for the characters that a terminal or a browser obeys or leaves out instead of showing them: control
characters (C0 and C1); characters that break lines or change the direction of writing, which can make a text look like
another; and characters without any width, such as a soft hyphen, a variation selector or a tag, in which a text can be
hidden. It also matches halves of a surrogate pair, which cannot be printed at all. It does not match line feeds and
tabs."""
_UNSEEN = re.compile(UNSEEN)
_JOINER, _EMOJI_STYLE, _KEY = "\u200d", "\ufe0f", "\u20e3"
_EMOJI = re.compile(
    "[\xa9\xae\u203c\u2049\u2122\u2139\u2194-\u21aa\u231a-\u23ff\u24c2\u25aa-\u25fe\u2600-\u27bf\u2934\u2935\u2b05-\u2b55"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
)


def visible(text: str) -> str:
    """Return a text in which nothing is hidden: each control character, each character that changes the direction of
    writing, and each that has no width is written as an escape such as `\\x1b` or `\\u202e`. Tabs and line breaks stay;
    the line break of Windows becomes `\\n`. Within an emoji that is made of several characters, those without width
    stay too.

    Every line that the command prints, and every text of the inspector, passes through this function.
    """
    return _UNSEEN.sub(_escape, text.replace("\r\n", "\n"))


def _escape(found: re.Match[str]) -> str:
    if found[0] in (_JOINER, _EMOJI_STYLE) and _is_in_emoji(found.string, found.start()):
        return found[0]
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _is_in_emoji(text: str, at: int) -> bool:
    """Return whether the invisible character at this position (counted from 0) belongs to an emoji. It does if it joins
    the emoji before and after it, if it gives the emoji before it its coloured form, or if it is a part of a keycap,
    the emoji of a key with a digit, # or *."""
    before, after = text[max(0, at - 1) : at], text[at + 1 : at + 2]
    if text[at] == _EMOJI_STYLE:
        return bool(_EMOJI.match(before)) or (before in tuple("0123456789#*") and after == _KEY)
    if before == _EMOJI_STYLE:
        before = text[max(0, at - 2) : at - 1]
    return bool(_EMOJI.match(before) and _EMOJI.match(after))


def visible_json(text: str) -> str:
    """Return JSON text in which every control character except tabs and line feeds, every character that changes the
    direction of writing, and every one without width is written as a JSON escape such as `\\u009b`, so that a terminal
    does not act on it. The value of the JSON stays the same, because such characters occur only inside its strings."""
    return _UNSEEN.sub(_json_escape, text)


def _json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


_GAPS = 8
"""How many characters of a text are looked at for each character of the line that is made of it, because white space in
the text can make the line shorter."""


def one_line(text: str, longest: int | None = None) -> str:
    """Return a text on one line: with control characters made visible, and with single spaces in place of line breaks,
    tabs and longer gaps. If `longest` is given, the result has at most that many characters, and ends in
    an ellipsis if it was cut.

    With `longest`, only the beginning of a long text is looked at, so the time and memory needed do not grow with it.
    """
    if longest is None:
        return " ".join(visible(text).split())
    beginning = text[: _GAPS * longest]
    more = "…" if len(beginning) < len(text) else ""
    return cut(" ".join(visible(beginning).split()) + more, longest)


def cut(text: str, longest: int | None) -> str:
    """Return the text. If it has more than `longest` characters, cut it to at most that many, including the ellipsis
    that is added at its end. With None, nothing is cut."""
    return text if longest is None or len(text) <= longest else text[: max(0, longest - 1)].rstrip() + "…"
