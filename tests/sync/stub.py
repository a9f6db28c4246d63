"""Writes the type stub of `clew.sync` from the async originals: `python -m tests.sync.stub` after changing one of them."""

from __future__ import annotations

import ast
import builtins
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, get_args, get_origin

import clew
import clew.checkpointers
import clew.sync
from clew.sync._blocking import OWN_METHODS, documentation, is_turned, public_names, return_annotation

STUB = Path(clew.sync.__file__).with_suffix(".pyi")
INDENT = " " * 4
PLAIN = (type(None), bool, int, float, str, bytes)


class Stub:
    """The text of the stub, and what it has to import."""

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}

    def text(self) -> str:
        originals = {name: _original(name) for name in clew.sync.__all__}
        body = [block for name, value in originals.items() if (block := self._block(name, value))]
        own = {name for name, value in originals.items() if is_turned(value)}
        plain = {name: value.__module__ for name, value in originals.items() if name not in own and callable(value)}
        needed = {name: home for name, home in self.imports.items() if name not in own and name not in plain}
        lines = [f"import {name}" if name == home else f"from {home} import {name}" for name, home in needed.items()]
        lines += [f"from {home} import {name} as {name}" for name, home in plain.items()]
        names = ", ".join(f'"{name}"' for name in clew.sync.__all__)
        head = '"""Written by `python -m tests.sync.stub`; a test holds it against the async originals."""'
        return "\n".join([head, "", *lines, "", f"__all__ = [{names}]", "", *body])

    def _block(self, name: str, value: Any) -> str:
        if isinstance(value, str):
            return f"{name}: str\n"
        if not is_turned(value):
            return ""
        return self._class(value) if isinstance(value, type) else self._function(name, value, "")

    def _class(self, cls: type) -> str:
        bases = [base.__name__ for base in _public_ancestors(cls)[:1]] + self._generic(cls)
        lines = [f"class {cls.__name__}{'(' + ', '.join(bases) + ')' if bases else ''}:"]
        if cls.__doc__:
            lines.append(f'{INDENT}"""{documentation(cls.__doc__)}"""\n')
        if not inspect.isabstract(cls) and "__init__" in vars(cls):
            lines.append(self._function("__init__", cls.__init__, INDENT))  # type: ignore[misc]
        for name in public_names(cls):
            member = self._member(cls, name)
            if not any(_signature(member) == _signature(self._member(base, name)) for base in _ancestors(cls, name)):
                lines.append(member)
        return "\n".join(lines)

    def _generic(self, cls: type) -> list[str]:
        return [
            self._known(f"Generic[{', '.join(variable.__name__ for variable in get_args(base))}]", cls)
            for base in getattr(cls, "__orig_bases__", ())
            if get_origin(base) is Generic
        ]

    def _member(self, cls: type, name: str) -> str:
        found = inspect.getattr_static(cls, name)
        if isinstance(found, staticmethod):
            return f"{INDENT}@staticmethod\n" + self._function(name, found.__func__, INDENT)
        if isinstance(found, classmethod):
            return f"{INDENT}@staticmethod\n" + self._function(name, getattr(cls, name), INDENT)
        if inspect.isfunction(found):
            return self._function(OWN_METHODS.get(name, name), found, INDENT)
        if isinstance(found, property):
            return f"{INDENT}@property\n" + self._function(name, found.fget, INDENT)
        annotation = next(vars(base)["__annotations__"][name] for base in cls.__mro__ if name in vars(base))
        return f"{INDENT}@property\n{INDENT}def {name}(self) -> {self._known(annotation, cls)}: ...\n"

    def _function(self, name: str, function: Any, indent: str) -> str:
        signature = inspect.signature(function)
        home = sys.modules[function.__module__]
        parts: list[str] = []
        star = False
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY and not star:
                parts.append("*")
            star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
            parts.append(self._parameter(parameter, home))
        returned = self._known(return_annotation(name, signature.return_annotation), home)
        doc = inspect.getdoc(function) if name != "__init__" else None
        lines = (documentation(doc) or "").replace("\\", "\\\\").splitlines()
        text = "\n".join([lines[0], *((indent + INDENT + line).rstrip() for line in lines[1:])]) if lines else ""
        body = f'\n{indent}{INDENT}"""{text}"""\n' if doc and name not in OWN_METHODS.values() else " ...\n"
        return f"{indent}def {name}({', '.join(parts)}) -> {returned}:{body}"

    def _parameter(self, parameter: inspect.Parameter, home: Any) -> str:
        text = parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            text = f"*{text}"
        elif parameter.kind is parameter.VAR_KEYWORD:
            text = f"**{text}"
        if parameter.annotation is not parameter.empty:
            text += f": {self._known(parameter.annotation, home)}"
        if parameter.default is not parameter.empty:
            plain = isinstance(parameter.default, PLAIN) or parameter.default == ()
            text += f" = {parameter.default!r}" if plain else " = ..."
        return text

    def _known(self, annotation: str, home: Any) -> str:
        """The annotation, with an import noted for every name in it."""
        module = home if inspect.ismodule(home) else sys.modules[home.__module__]
        for node in ast.walk(ast.parse(annotation, mode="eval")):
            if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
                self.imports[node.id] = _imported(module).get(node.id, module.__name__)
        return annotation


def _imported(module: Any) -> dict[str, str]:
    """Where a module has its names from, also those for type checkers alone."""
    return dict(_imports(ast.parse(inspect.getsource(module)))) | {"Iterator": "collections.abc"}


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, node.module or "") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, alias.name) for alias in node.names)


def _original(name: str) -> Any:
    return getattr(clew, name, None) or getattr(clew.checkpointers, name)


def _ancestors(cls: type, name: str) -> list[type]:
    return [base for base in _public_ancestors(cls) if hasattr(base, name)]


def _public_ancestors(cls: type) -> list[type]:
    """The nearest first; what stands between them is of no concern to a type checker."""
    return [base for base in cls.__mro__[1:] if is_turned(base) and base.__name__ in clew.sync.__all__]


def _signature(member: str) -> str:
    """Without its documentation."""
    return member.partition('"""')[0].removesuffix(" ...\n").strip()


def _ruff(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "ruff", *arguments, str(STUB)], check=True)


if __name__ == "__main__":
    STUB.write_text(Stub().text())
    _ruff("check", "--fix", "--quiet", "--select", "I")
    _ruff("format", "--quiet")
