"""The pages of the site that are not files in docs/: a hook that mkdocs.yml names.

The README and the other files at the root become pages, and each public module gets a reference page with every name in its
`__all__`. Links between all of them are rewritten, so that the same files also work where the repository is shown.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
AT_ROOT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "RELEASING.md": "releasing.md",
}
REFERENCE = {
    "clew": ("The names that most programs need.", ["agent", "sessions", "threads", "tools"]),
    "clew.agent": (
        "Agents, runs, sessions, and the events of a run.",
        ["agent", "sessions", "budgets", "human-in-the-loop"],
    ),
    "clew.threads": ("Threads, and what can be done with them.", ["threads", "keeping", "moving"]),
    "clew.checkpointers": ("The stores and the contract that they keep.", ["checkpointers", "format"]),
    "clew.tools": ("Tools that an agent can call.", ["tools", "human-in-the-loop"]),
    "clew.models": ("Models, requests, responses and prices.", ["models", "budgets"]),
    "clew.providers": ("Claude Code, Codex and opencode as agents.", ["providers", "another-machine", "out-of-quota"]),
    "clew.workspace": ("Snapshots of a folder of files.", ["workspace"]),
    "clew.messages": ("The canonical conversation: messages and their blocks.", ["dialects"]),
    "clew.log": ("Entries, frames, and the fold to a checkpoint.", ["threads", "format"]),
    "clew.testing": ("What tests of agents and stores need.", ["testing", "checkpointers"]),
    "clew.errors": ("Every error that Clew raises on purpose. All of them are a `ClewError`.", ["command"]),
    "clew.sync": ("The same names without `await`.", ["sync"]),
}
"""For each public module what its page says first, and the guides with examples."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from the root and the reference."""
    for source, page in AT_ROOT.items():
        files.append(File.generated(config, page, content=_relinked((ROOT / source).read_text())))
    for module in REFERENCE:
        name = module.removeprefix("clew.")
        files.append(File.generated(config, f"reference/{name}.md", content=reference_page(module)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead links of the guides to files at the root to the pages made from these."""
    return re.sub(r"\]\(\.\./([A-Z_]+\.md)", lambda link: f"]({AT_ROOT[link[1]]}", markdown)


def _relinked(text: str) -> str:
    """Lead links of a file at the root to pages and pictures of the site."""
    text = re.sub(r"(\]\(|src=\"|srcset=\")docs/", r"\1", text)
    return re.sub(r"\]\((\w+\.md)", lambda link: f"]({AT_ROOT.get(link[1], link[1])}", text)


def reference_page(module: str) -> str:
    """Write the reference page of a module: one section for each public name."""
    about, guides = REFERENCE[module]
    titles = {
        guide: (ROOT / "docs" / f"{guide}.md").read_text().partition("\n")[0].removeprefix("# ") for guide in guides
    }
    links = ", ".join(f"[{title}](../{guide}.md)" for guide, title in titles.items())
    names = sorted((name for name in import_module(module).__all__ if not name.startswith("__")), key=str.lower)
    sections = _table(names) if module == "clew" else "\n\n".join(_section(module, name) for name in names)
    return f"# {module}\n\n{about} Examples are in the guides: {links}.\n\n{sections}\n"


def _table(names: list[str]) -> str:
    """List the names of `clew` itself, each with a link to the package that it comes from."""
    clew = import_module("clew")
    homes = {name: _home(getattr(clew, name)) for name in names}
    rows = [f"| [`{name}`][{home}.{name}] | {_first_sentence(getattr(clew, name))} |" for name, home in homes.items()]
    return "\n".join(["| name | what it is |", "|---|---|", *rows])


def _home(value: Any) -> str:
    """Return the public module that this comes from: `clew.agent` for something of `clew.agent.loop`."""
    return ".".join(value.__module__.split(".")[:2])


def _first_sentence(value: Any) -> str:
    text = " ".join((value.__doc__ or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.:]) ", text)[0].rstrip(":").replace("|", "\\|")


def _section(module: str, name: str) -> str:
    """Write the section of a name, and for a class those of the functions that it takes from other modules as methods."""
    value = getattr(import_module(module), name)
    lines = [f"::: {module}.{name}"]
    if isinstance(value, type) and module != "clew.sync":
        for attribute, method in vars(value).items():
            if isinstance(method, staticmethod) and method.__func__.__module__ != value.__module__:
                function = f"{method.__func__.__module__}.{method.__func__.__name__}"
                shown = f"{name}.{attribute}"
                options = f"      heading: {shown}\n      heading_level: 3\n      toc_label: {shown}"
                lines.append(f"::: {function}\n    options:\n{options}")
    return "\n\n".join(lines)
