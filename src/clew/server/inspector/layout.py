"""What all pages have in common: the frame around them, and the small parts that several use."""

from __future__ import annotations

from typing import NamedTuple

from clew.checkpointers.http.protocol import encode_text
from clew.server.inspector.assets import asset_url
from clew.server.inspector.html import Child, Html, el, join

__all__ = ["STATUS_WORDS", "Viewer", "damage_note", "empty", "field", "page", "status_badge", "thread_url"]

STATUS_WORDS = {
    "running": "Running",
    "waiting": "Waiting",
    "interrupted": "Interrupted",
    "failed": "Failed",
    "done": "Done",
}


class Viewer(NamedTuple):
    """Who looks, as far as pages need to know."""

    can_write: bool = False
    has_tokens: bool = False
    label: str = ""
    namespace: str = ""
    csrf: str = ""
    store: str = ""
    """The URL that commands name for the store that is looked at; empty where it is the default store of this machine."""
    is_nested: bool = False
    """Whether it is a namespace within that of the token."""

    def proof(self) -> Html:
        """The field that every form carries."""
        return el("input", type="hidden", name="csrf", value=self.csrf)


def page(title: str, *content: Child, viewer: Viewer | None, current: str = "", wide: bool = False) -> Html:
    """A whole document. Without a viewer it is one that strangers see: there is no way on from it but to sign in."""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{title} · Clew"),
        el("link", rel="icon", type="image/svg+xml", href=asset_url("favicon.svg")),
        el("link", rel="stylesheet", href=asset_url("inspector.css")),
        el("script", src=asset_url("inspector.js")),
    )
    body = el(
        "body",
        el("a", "Skip to the content", class_="skip", href="#content"),
        _top(viewer, current),
        el("main", *content, id="content", class_="wide" if wide else None, tabindex="-1"),
        _help(),
        el("div", id="toast", role="status", aria_live="polite"),
    )
    return join(Html("<!doctype html>"), el("html", head, body, lang="en"))


def _top(viewer: Viewer | None, current: str) -> Html:
    links = [("threads", "/", "Threads"), ("overview", "/overview", "Overview")]
    nav = el(
        "nav",
        [
            el("a", text, href=url, aria_current="page" if name == current else None, data_test=f"nav-{name}")
            for name, url, text in links
        ],
        aria_label="Main",
    )
    return el(
        "header",
        el("a", _logo(), el("span", "clew"), href="/", class_="brand", aria_label="Clew: threads"),
        nav if viewer is not None else None,
        el(
            "div",
            _who(viewer) if viewer is not None else None,
            el(
                "button",
                "◐",
                type="button",
                id="theme",
                class_="icon",
                title="Light or dark",
                aria_label="Switch between light and dark",
                data_test="theme-toggle",
            ),
            el(
                "button",
                "?",
                type="button",
                id="help-button",
                class_="icon",
                title="Keyboard (?)",
                aria_label="Keyboard shortcuts",
                data_test="help-button",
            ),
            class_="tools",
        ),
        class_="top",
    )


def _who(viewer: Viewer) -> Html:
    where = el("span", viewer.namespace, class_="namespace", title="Namespace", data_test="namespace")
    if not viewer.has_tokens:
        return join(where if viewer.namespace else None)
    leave = el(
        "form",
        viewer.proof(),
        el("button", "Sign out", type="submit", class_="quiet", data_test="sign-out"),
        method="post",
        action="/logout",
    )
    read_only = None if viewer.can_write else el("span", "read only", class_="chip", data_test="read-only")
    return join(where if viewer.namespace else None, read_only, leave)


def _logo() -> Html:
    """A ball of thread, with its end."""
    return el(
        "svg",
        el("circle", cx="11", cy="12", r="8"),
        el("path", d="M4.5 9.5c4-3 9-3 13 0M3.5 13.5c4.5 2.5 10.5 2.5 15 0M8 4.8c-2 4.5-2 10 0 14.4"),
        el("path", d="M17.5 17c2.5 2 4 2 6 .5"),
        viewBox="0 0 25 24",
        class_="logo",
        aria_hidden="true",
    )


_KEYS = [
    ("j  k", "next and previous thread or turn"),
    ("Enter", "open what is selected"),
    ("/", "search"),
    ("g t", "threads"),
    ("g o", "overview"),
    ("?", "this help"),
]


def _help() -> Html:
    rows = [el("div", el("dt", [el("kbd", key) for key in keys.split()]), el("dd", text)) for keys, text in _KEYS]
    return el(
        "dialog",
        el("h2", "Keyboard"),
        el("dl", rows),
        el("form", el("button", "Close", type="submit", autofocus=True), method="dialog"),
        id="help",
        data_test="help",
        aria_label="Keyboard shortcuts",
    )


def thread_url(thread_id: str, rest: str = "") -> str:
    return f"/t/{encode_text(thread_id)}{rest}"


def status_badge(status: str, *, crashed: bool = False) -> Html:
    """In a word, with a dot whose colour says no more than the word does."""
    word = "Crashed" if crashed else STATUS_WORDS.get(status, status)
    kind = "crashed" if crashed else status
    return el("span", word, class_=f"status status-{kind}", data_test="status", data_status=kind)


def field(label: str, control: Html, *, class_: str = "") -> Html:
    return el("label", el("span", label), control, class_=f"field {class_}".strip())


def damage_note(damage: str) -> Html:
    """Beside what could be listed: what could not."""
    return el("p", damage, class_="error", role="alert", data_test="damage")


def empty(title: str, *more: Child) -> Html:
    return el("div", el("h2", title), *more, class_="empty", data_test="empty")
