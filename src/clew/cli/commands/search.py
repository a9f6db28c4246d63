"""`clew search`: find threads by the text of their titles and messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from clew._runtime.text import ago, one_line
from clew.cli import quantities
from clew.cli.deferred import checkpointers, opensearch, render, rich_text, thread_heads, thread_search
from clew.cli.failures import exit_code, report_errors
from clew.cli.options import Json, Store
from clew.cli.output.console import console, hint, print_json, say, working
from clew.cli.output.heads import head_object, status_cell
from clew.cli.stores import on_store

if TYPE_CHECKING:
    from rich.console import Console

    from clew.checkpointers import Checkpointer, Head
    from clew.errors import ClewError
    from clew.threads.reader import Progress
    from clew.threads.views.search import Hit

__all__ = ["search"]

_HITS = 3
"""The most hits that are printed for each thread."""


@report_errors
def search(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text to find. Upper and lower case are the same.")],
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="The most threads to show.")] = 20,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only threads changed since: 12h, 2d, 1w or a date.")
    ] = None,
    scan: Annotated[bool, typer.Option("--scan", help="Read every thread, even if the store has an index.")] = False,
    json: Json = False,
    store: Store = None,
) -> None:
    """Find words in the titles and messages of all threads.

    Tool calls and results are searched too; the newest threads come first. Every thread is read, unless the store has
    an index (OpenSearch), which covers titles and the texts that its setting index_text selects. Threads that cannot be
    read are named at the end; the exit code is then that of the first error.

    \b
    Examples:
      clew search "the tower"
      clew search paris --since 7d --json
    """
    thread_search.pattern_of(text)
    query = checkpointers.HeadQuery(updated_after=quantities.since(since))
    unread: list[tuple[Head, ClewError]] = []

    async def work(opened: Checkpointer) -> None:
        show = _Shown(text, json)
        if not scan and await _by_index(opened, text, query, limit, show):
            return
        await _by_scan(opened, text, query, limit, show, unread)

    on_store(store, work)
    _say_unread(unread)


class _Shown:
    """Prints each thread that matches the search, as soon as it is found. `count` is how many were printed so far."""

    def __init__(self, text: str, json: bool) -> None:
        self.out = console()
        self.count = 0
        self._text = text
        self._json = json

    def add(self, found: thread_search.Found) -> None:
        self.count += 1
        (_print_json if self._json else self._print)(found)

    def _print(self, found: thread_search.Found) -> None:
        out, head = self.out, found.head
        if self.count > 1:
            out.print()
        sign, style = status_cell(head.status)
        line = rich_text.Text().append(one_line(head.thread_id), "bold").append(f"  {sign}", style)
        line.append(f" · {one_line(head.title)} · {ago(head.updated_at)} ago", "dim")
        out.print(line, soft_wrap=True)
        for hit in found.hits[:_HITS]:
            self._print_hit(out, hit)
        if len(found.hits) > _HITS:
            out.print(f"  … {len(found.hits) - _HITS} more in this thread", style="dim")

    def _print_hit(self, out: Console, hit: Hit) -> None:
        where = hit.where if hit.turn is None else f"turn {hit.turn}, {hit.where}"
        line = rich_text.Text().append(f"  {where}: ", "cyan")
        words = rich_text.Text(one_line(hit.text))
        words.highlight_regex(thread_search.pattern_of(self._text), "bold yellow")
        out.print(line.append_text(words), soft_wrap=True)


def _print_json(found: thread_search.Found) -> None:
    print_json({**head_object(found.head), "hits": render.plain_object(found.hits)})


async def _by_index(store: Checkpointer, text: str, query: checkpointers.HeadQuery, limit: int, shown: _Shown) -> bool:
    """Search for `text` with the store's own index, which gives at most `limit` threads. Those that match `query` are
    printed with `shown`. Returns True. If the store has no index, prints nothing and returns False."""

    if not isinstance(store, opensearch.OpenSearchCheckpointer):
        return False
    for head in await store.search(text, limit=min(limit, opensearch.MOST_FOUND)):
        if query.matches(head) and not thread_heads.is_hidden(head):
            shown.add(thread_search.Found(head, ()))
    hint("Found by the store's index, which covers titles and what index_text selects. --scan reads every thread.")
    return True


async def _by_scan(
    store: Checkpointer,
    text: str,
    query: checkpointers.HeadQuery,
    limit: int,
    shown: _Shown,
    unread: list[tuple[Head, ClewError]],
) -> None:
    more = False
    with _working(shown.out) as tick:
        finding = thread_search.search(store, text, query, unreadable=lambda *both: unread.append(both), progress=tick)
        async with aclosing(finding) as found:
            async for one in found:
                more = shown.count == limit
                if more:
                    break
                shown.add(one)
    if more:
        hint(f"These are the newest {limit}. For more: --limit N.")
    elif not shown.count:
        hint("No thread of this store matches.")


@contextmanager
def _working(out: Console) -> Iterator[Progress]:
    """A context manager that shows a progress bar while its block runs. If the console `out`, to which results are
    printed, is a terminal, the bar is below the results; otherwise it is on the standard error. The value of the `with`
    statement is a function that moves the bar. It takes two numbers: how many threads were searched so far, and how
    many there are."""
    if not out.is_terminal:
        with working("Searching") as tick:
            yield tick
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    with Bar(*columns, console=out, transient=True) as bar:
        task = bar.add_task("Searching", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _say_unread(unread: list[tuple[Head, ClewError]]) -> None:
    """Print an error for each thread that could not be read. If there is one, exit the command with the code of the
    first error, because the result is not complete."""
    for head, error in unread:
        say(f"Error: thread {head.thread_id!r} could not be read: {error}", err=True)
    if unread:
        raise typer.Exit(exit_code(unread[0][1]))
