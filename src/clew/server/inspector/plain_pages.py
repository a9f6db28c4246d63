"""Small pages: the login, an error, and the forms that continue from a turn of a thread in a new thread (fork) or in
the same one (rewind), and that change its title and tags."""

from __future__ import annotations

from typing import Any

from clew import advice
from clew.server.inspector.templates import Markup, render
from clew.server.inspector.visits import Viewer
from clew.threads.ops.verify import Verdict

__all__ = ["describe_page", "error_page", "fork_page", "login_page", "rewind_page"]


def login_page(csrf: str, next_path: str, *, needs_token: bool, wrong: str = "") -> Markup:
    """Return the page with the login form, which asks for a namespace (a part of the store with threads of its own)
    and, if `needs_token` is set, for a token. After the login the browser goes to `next_path`. `wrong` says why the
    last try failed; empty at the first try. `csrf` is a text in the form which proves that a page of this service made
    the form."""
    return render(
        "login.html",
        viewer=None,
        title="Sign in",
        csrf=csrf,
        next_path=next_path,
        needs_token=needs_token,
        wrong=wrong,
        new_token=advice.new_token(),
    )


def error_page(viewer: Viewer | None, status: int, title: str, text: str, verdict: Verdict | None = None) -> Markup:
    """Return an error page with the HTTP status code `status`, a title and a text. `viewer` is None if it is not known
    who asks. If there is a `verdict`, the result of `clew verify` for the thread, the page lists what was found and how
    to repair it."""
    repair = advice.repair(store=viewer.store if viewer else "")
    return render("error.html", viewer=viewer, status=status, title=title, text=text, verdict=verdict, repair=repair)


def fork_page(viewer: Viewer, thread_id: str, turn: int, suggested: str) -> Markup:
    """Return the page with the form that forks a thread after the turn with the number `turn`. `suggested` is the id
    that the form proposes for the new thread."""
    return _action_page(
        viewer,
        thread_id,
        "fork",
        f"Fork at turn {turn}",
        "A new thread that goes on from the end of this turn. This one stays as it is.",
        button="Fork",
        turn=turn,
        suggested=suggested,
    )


def rewind_page(viewer: Viewer, thread_id: str, turn: int, turns: int) -> Markup:
    """Return the page with the form that asks before a thread is rewound: before all turns after turn number `turn` are
    taken back. `turns` is how many turns the thread has now."""
    gone = turns - turn
    many = "turn after it is" if gone == 1 else "turns after it are"
    return _action_page(
        viewer,
        thread_id,
        "rewind",
        f"Rewind to turn {turn}?",
        f"The work goes on from the end of turn {turn}; {gone} {many} no longer part of the conversation. They stay on "
        "record, and what was spent stays spent. Files are not touched.",
        button="Rewind",
        turn=turn,
    )


def describe_page(viewer: Viewer, thread_id: str, title: str, tags: dict[str, str]) -> Markup:
    """Return the page with the form that changes the title and the tags of a thread. `title` and `tags` are the present
    ones, which the form shows at first."""
    return _action_page(
        viewer,
        thread_id,
        "describe",
        "Title and tags",
        "For people and for searching. The model does not see them.",
        button="Keep",
        thread_title=title,
        tags=" ".join(f"{name}={value}" for name, value in sorted(tags.items())),
    )


def _action_page(viewer: Viewer, thread_id: str, action: str, title: str, text: str, **values: Any) -> Markup:
    return render("action.html", viewer=viewer, thread_id=thread_id, action=action, title=title, text=text, **values)
