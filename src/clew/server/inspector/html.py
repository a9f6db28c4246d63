"""HTML made by functions: whatever is not made here is text, and is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

__all__ = ["Child", "Html", "el", "join"]


class Html(str):
    """Markup that is safe to send as it is: only `el` and `join` make it, and whoever writes it out by hand."""

    __slots__ = ()


Child = str | int | None | Iterable["Child"]
"""What an element holds: text, markup, nothing, or several of them."""

_VOID = frozenset({"br", "circle", "hr", "img", "input", "line", "link", "meta", "path", "polyline", "rect"})


def el(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """An element. `class_` and `for_` stand for names that Python keeps, and `data_x` for `data-x`; True is an attribute
    without a value, None and False leave it out."""
    said = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{said}/>")
    return Html(f"<{name}{said}>{join(*children)}</{name}>")


def join(*children: Child) -> Html:
    """These one after the other."""
    return Html("".join(map(_child, children)))


def _child(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str | int):
        return escape(str(child))
    return join(*child)


def _attribute(name: str, value: str | int | float | bool | None) -> str:
    name = name.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
