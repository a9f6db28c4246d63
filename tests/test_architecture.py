"""The rules of the code's layout, checked on the sources: layers, private names, sizes, names, cycles."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "clew"

LAYERS = [
    {"errors", "_runtime", "advice"},
    {"messages"},
    {"log"},
    {"checkpointers"},
    {"threads"},
    {"workspace"},
    {"models", "tools"},
    {"agent"},
    {"providers"},
    {"workers"},
    {"testing"},
    {"sync"},
    {"compat", "integrations"},
    {"server"},
    {"demo"},
    {"cli"},
]
"""A package imports only from its own row and the rows above it: the table of CONTRIBUTING.md, in its order."""

NOUNS = {"listing", "blocking"}
"""Module names that end in -ing and are nouns: a listing is a page of heads, `clew.sync` is the blocking face."""

LONGEST = 500


class Import(NamedTuple):
    """One import of a module of Clew by another."""

    importer: str
    module: str
    names: tuple[str, ...]
    line: int
    at_import: bool
    """Whether it is carried out when the importing module is imported: not inside a function, not for types alone."""


def _modules() -> dict[str, Path]:
    """Return every module of Clew by its dotted name; a package by its own."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = ("clew", *path.relative_to(SOURCE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _imports(importer: str) -> Iterator[Import]:
    tree = ast.parse(MODULES[importer].read_text(encoding="utf-8"))
    at_import = {id(node) for node in _carried_out(tree.body)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "clew":
            names = tuple(alias.name for alias in node.names)
            modules = {name: f"{node.module}.{name}" for name in names if f"{node.module}.{name}" in MODULES}
            for module in modules.values():
                yield Import(importer, module, (), node.lineno, id(node) in at_import)
            rest = tuple(name for name in names if name not in modules)
            if rest:
                yield Import(importer, node.module, rest, node.lineno, id(node) in at_import)


def _carried_out(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If | ast.Try) and not _is_for_types(node):
            yield from _carried_out(node.body)


@cache
def _all_imports() -> list[Import]:
    """Return every import in the sources. Called by tests alone, so that no other run has to parse them."""
    return [found for module in MODULES for found in _imports(module)]


def _row(module: str) -> int:
    package = module.split(".")[1] if "." in module else ""
    return next((row for row, packages in enumerate(LAYERS) if package in packages), len(LAYERS))


def test_every_package_has_a_row() -> None:
    packages = {module.split(".")[1] for module in MODULES if module.count(".") >= 1}
    assert packages - set().union(*LAYERS) == {"__main__"}


def test_a_package_imports_only_from_its_own_row_and_the_rows_above_it() -> None:
    wrong = [
        f"{found.importer}:{found.line} imports {found.module}"
        for found in _all_imports()
        if found.module != "clew" and "." in found.importer and _row(found.module) > _row(found.importer)
    ]
    assert wrong == []


def test_nothing_private_is_imported_from_another_folder() -> None:
    """A leading underscore means: for this folder and the folders in it."""
    wrong = []
    for found in _all_imports():
        parts = found.module.split(".")
        for depth, part in enumerate(parts):
            if part.startswith("_") and not _is_inside(found.importer, ".".join(parts[:depth])):
                wrong.append(f"{found.importer}:{found.line} imports {found.module}")
        wrong += [
            f"{found.importer}:{found.line} imports {name} of {found.module}"
            for name in found.names
            if name.startswith("_") and not name.startswith("__") and found.importer != found.module
        ]
    assert wrong == []


def _is_inside(module: str, folder: str) -> bool:
    return module == folder or module.startswith(f"{folder}.")


def test_no_module_is_longer_than_five_hundred_lines() -> None:
    lines = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in MODULES.items()}
    assert {module: count for module, count in lines.items() if count > LONGEST} == {}


def test_modules_are_named_by_nouns() -> None:
    names = {module: module.rpartition(".")[2].lstrip("_") for module in MODULES}
    assert [module for module, name in names.items() if name.endswith("ing") and name not in NOUNS | {"testing"}] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for found in _all_imports():
        if found.at_import and found.module != found.importer and found.module in MODULES:
            graph[found.importer].add(found.module)
    assert _circle(graph) == []


def _circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules of one circle, in order; nothing if there is none."""
    done: set[str] = set()
    for start in sorted(graph):
        path: list[str] = []
        waiting = [(start, iter(sorted(graph[start])))]
        while waiting:
            module, others = waiting[-1]
            if len(path) < len(waiting):
                path.append(module)
            for other in others:
                if other in path:
                    return [*path[path.index(other) :], other]
                if other not in done:
                    waiting.append((other, iter(sorted(graph[other]))))
                    break
            else:
                done.add(module)
                waiting.pop()
                path.pop()
    return []


def test_what_a_rule_on_security_excuses_has_its_reason_on_the_line() -> None:
    bare = [
        f"{path.relative_to(SOURCE)}:{number}"
        for path in MODULES.values()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"# noqa: [^#]*\bS\d", line) and not re.search(r"# noqa: [A-Z0-9, ]+ - \S", line)
    ]
    assert bare == []
