"""Pages that say one thing: sign in, something went wrong, are you sure."""

from __future__ import annotations

from clew import advice
from clew.server.inspector.html import Child, Html, el, join
from clew.server.inspector.layout import Viewer, field, page, thread_url
from clew.threads.ops.verify import Verdict

__all__ = ["describe_page", "error_page", "fork_page", "login_page", "rewind_page", "verdict_html"]


def login_page(csrf: str, next_path: str, *, needs_token: bool, wrong: str = "") -> Html:
    token = el(
        "input",
        type="password",
        name="token",
        required=True,
        autofocus=True,
        autocomplete="current-password",
        data_test="token",
    )
    namespace = el(
        "input",
        type="text",
        name="namespace",
        autocomplete="off",
        placeholder="the default one",
        data_test="namespace-field",
    )
    form = el(
        "form",
        el("h1", "Sign in" if needs_token else "Choose a namespace"),
        el("p", wrong, class_="error", role="alert", data_test="login-error") if wrong else None,
        el("input", type="hidden", name="csrf", value=csrf),
        el("input", type="hidden", name="next", value=next_path),
        field("Token", token) if needs_token else None,
        field("Namespace (optional)", namespace),
        el("button", "Sign in" if needs_token else "Open", type="submit", class_="primary", data_test="sign-in"),
        el(
            "p",
            "A token of this server, as the API takes it. ",
            el("code", advice.new_token()),
            " makes one.",
            class_="hint",
        )
        if needs_token
        else None,
        method="post",
        action="/login",
        class_="card",
        data_test="login",
    )
    return page("Sign in", form, viewer=None)


def error_page(viewer: Viewer | None, status: int, title: str, text: str, *more: Child) -> Html:
    return page(
        title,
        el(
            "section",
            el("p", str(status), class_="code-number"),
            el("h1", title),
            el("p", text, data_test="error-text"),
            *more,
            el("p", el("a", "All threads", href="/")) if viewer is not None else None,
            class_="card error-card",
            data_test="error",
            data_status=status,
        ),
        viewer=viewer,
    )


def verdict_html(verdict: Verdict, store: str) -> Html:
    """What `clew verify` says of a thread. `store` is the URL by which the command finds it."""
    problems = [el("li", str(problem)) for problem in verdict.problems[:50]]
    return join(
        el("p", f"{verdict.readable} of {verdict.frames} frames from the first on can be read."),
        el("ul", problems, class_="problems") if problems else None,
        el(
            "p",
            "Restore it from a copy, or see what can be saved: ",
            el("code", advice.repair(store=store)),
            class_="hint",
        ),
    )


def fork_page(viewer: Viewer, thread_id: str, turn: int, suggested: str) -> Html:
    return _form_page(
        viewer,
        thread_id,
        "fork",
        f"Fork at turn {turn}",
        "A new thread that goes on from the end of this turn. This one stays as it is.",
        el("input", type="hidden", name="turn", value=turn),
        field(
            "Name of the new thread",
            el(
                "input", type="text", name="new_id", value=suggested, required=True, maxlength=1024, data_test="fork-id"
            ),
        ),
        button="Fork",
    )


def rewind_page(viewer: Viewer, thread_id: str, turn: int, turns: int) -> Html:
    gone = turns - turn
    many = "turn after it is" if gone == 1 else "turns after it are"
    what = f"{gone} {many} no longer part of the conversation"
    return _form_page(
        viewer,
        thread_id,
        "rewind",
        f"Rewind to turn {turn}?",
        f"The work goes on from the end of turn {turn}; {what}. They stay on record, and what was spent stays spent. "
        "Files are not touched.",
        el("input", type="hidden", name="turn", value=turn),
        button="Rewind",
    )


def describe_page(viewer: Viewer, thread_id: str, title: str, tags: dict[str, str]) -> Html:
    said = " ".join(f"{name}={value}" for name, value in sorted(tags.items()))
    return _form_page(
        viewer,
        thread_id,
        "describe",
        "Title and tags",
        "For people and for searching. The model does not see them.",
        field("Title", el("input", type="text", name="title", value=title, maxlength=500, data_test="title")),
        field("Tags, as name=value", el("input", type="text", name="tags", value=said, data_test="tags")),
        button="Keep",
    )


def _form_page(viewer: Viewer, thread_id: str, action: str, title: str, text: str, *fields: Child, button: str) -> Html:
    back = el("a", "Back", href=thread_url(thread_id), class_="button quiet", data_test="back")
    form = el(
        "form",
        el("h1", title),
        el("p", el("span", thread_id, class_="id")),
        el("p", text),
        viewer.proof(),
        *fields,
        el(
            "div",
            el("button", button, type="submit", class_="primary", data_test=f"{action}-submit"),
            back,
            class_="buttons",
        ),
        method="post",
        action=thread_url(thread_id, f"/{action}"),
        class_="card",
        data_test=f"{action}-form",
    )
    return page(title, form, viewer=viewer, current="thread")
