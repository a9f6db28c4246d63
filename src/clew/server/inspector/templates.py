"""The templates of the pages: HTML files of this package, filled in by Jinja2, which escapes every value."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.ext import Extension
from markupsafe import Markup

from clew._runtime.text import cut, dollars, elapsed, plural, short_number, size, visible
from clew.checkpointers.http.protocol import encode_text
from clew.server.inspector.assets import asset_url
from clew.server.inspector.markdown import markdown
from clew.server.inspector.text import STATUS_WORDS, count, cut_title, page_time
from clew.threads.heads import is_unsealed

__all__ = ["Markup", "part", "render", "thread_url"]

_LONGEST = 1_000_000
"""The most characters of any text on a page. Most texts have a lower limit of their own."""
_BREAK = re.compile(r"(\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\})|\s*\n\s*", re.DOTALL)


class JoinedLines(Extension):
    """A Jinja extension that joins the lines of templates. So templates can be indented without the indentation
    reaching the page, where `<pre>` would show it.

    A line break next to a tag or to a Jinja expression is dropped together with the indentation; any other line break
    becomes one space. Line numbers in tracebacks stay right.
    """

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        return _BREAK.sub(_joined, source.strip())


def _joined(found: re.Match[str]) -> str:
    if found[1]:
        return found[1]
    before, after = found.string[found.start() - 1], found.string[found.end()]
    space = "" if before in ">}" or after in "<{" else " "
    return f"{space}{{#{found[0].count(chr(10)) * chr(10)}#}}"


def _shown(value: Any) -> Any:
    """Return a text with its control characters made visible, and cut to `_LONGEST` characters. Jinja calls this for
    every value that a template puts into a page, because a browser would drop control characters or obey them. Values
    other than texts are returned unchanged, and so is `Markup`, in which control characters were made visible
    before."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    if len(value) > _LONGEST:
        value = f"{value[:_LONGEST]}\n… {len(value) - _LONGEST:,} more characters"
    return visible(value)


@cache
def _environment() -> Environment:
    made = Environment(
        autoescape=True,
        auto_reload=False,
        extensions=[JoinedLines],
        finalize=_shown,
        loader=PackageLoader("clew.server.inspector"),
        undefined=StrictUndefined,
    )
    for function in (
        page_time,
        count,
        cut,
        cut_title,
        dollars,
        is_unsealed,
        markdown,
        elapsed,
        plural,
        short_number,
        size,
    ):
        made.filters[function.__name__] = function
    made.globals |= {"STATUS_WORDS": STATUS_WORDS, "asset_url": asset_url, "thread_url": thread_url}
    return made


def render(name: str, **values: Any) -> Markup:
    """Return the page that the template file `name` makes of these values. Raises `jinja2.UndefinedError` if the
    template uses a value that is not given."""
    return Markup(_environment().get_template(name).render(values))  # noqa: S704 - every value in it is escaped


def part(template: str, macro: str, *values: Any) -> Markup:
    """Return a piece of a page, made from these values by a macro (a Jinja function) of a template. Whole pages and
    live updates use the same macros.

    The template must not extend another template, as the templates of whole pages do: its macros would then need the
    values of a whole page.
    """
    made: Markup = getattr(_environment().get_template(template).module, macro)(*values)
    return made


def thread_url(thread_id: str, rest: str = "") -> str:
    """Return the path of a thread's page. `rest` is added to it, such as `/files?turn=3`."""
    return f"/t/{encode_text(thread_id)}{rest}"
