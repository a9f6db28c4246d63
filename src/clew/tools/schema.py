"""Make a JSON schema from a function's signature, and typed values from a model's arguments.

msgspec does both, and pydantic does it for its own models. Wrong arguments are reported all at once: which argument,
what was expected, what was given. This module also reads docstrings and type hints.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from clew.errors import InvalidInput
from clew.tools import values as _pydantic
from clew.tools.context import ToolContext
from clew.tools.signals import BadArguments
from clew.tools.values import shown

__all__ = ["Parameters", "bare_function", "is_context", "read_docstring", "read_hints", "read_parameters"]


_PLACE = re.compile(r" - at `(?:key in )?\$(.*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_OMITTED = object()


class _Parameter(msgspec.Struct, frozen=True):
    name: str
    hint: Any
    required: bool = True
    default: Any = _OMITTED
    positional: bool = False
    adapter: Any = None
    """Pydantic's adapter for the parameter's type if that needs pydantic; else None."""


class Parameters:
    """The parameters of a tool. `schema` is the JSON schema of an object with all of them. `decode` checks the
    arguments that a model gave, and converts them to the types that the tool's function declares."""

    def __init__(
        self,
        schema: dict[str, Any],
        known: tuple[_Parameter, ...] = (),
        *,
        rest: _Parameter | None = None,
        context: str | None = None,
        context_positional: bool = False,
        checked: bool = True,
    ) -> None:
        self.schema = schema
        self.context = context
        """The name of the parameter that receives the `ToolContext`; None if the function has no such parameter."""
        self._context_positional = context_positional
        self._known = {parameter.name: parameter for parameter in known}
        self._rest = rest
        self._checked = checked

    @classmethod
    def unchecked(cls, schema: dict[str, Any]) -> Parameters:
        """Make the parameters of a tool that checks its arguments itself, such as a tool of an MCP server. `decode`
        then only checks that the arguments are an object."""
        return cls(schema, checked=False)

    def decode(self, arguments: Any) -> dict[str, Any]:
        """Convert a model's arguments to the types that the function declares. Raises `BadArguments`, which names every
        problem, if they do not fit."""
        if arguments is None or arguments == "":
            arguments = {}
        if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
            raise BadArguments(f"The arguments must be one JSON object, but were: {shown(arguments)}")
        if not self._checked:
            return dict(arguments)
        problems: list[str] = []
        values: dict[str, Any] = {}
        for name, given in arguments.items():
            parameter = self._known.get(name, self._rest)
            if parameter is None:
                takes = ", ".join(f"`{known}`" for known in self._known) or "none"
                problems.append(f"`{name}`: there is no such argument; the arguments are: {takes}")
                continue
            value, wrong = _decode(parameter, given)
            if wrong and given is None and not parameter.required:
                continue  # null for an optional argument means that it is left out
            problems += [f"`{name}{place}`: {reason}; given: {shown(found)}" for place, reason, found in wrong]
            values[name] = value
        problems += [
            f"`{name}`: missing; expected {_expected(self.schema['properties'][name])}"
            for name, parameter in self._known.items()
            if parameter.required and name not in arguments
        ]
        if problems:
            raise BadArguments("The arguments do not fit. Correct these and call again:\n- " + "\n- ".join(problems))
        return values

    def complete(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of these argument values with the defaults of all arguments that were left out."""
        left_out = {name: one.default for name, one in self._known.items() if not one.required and name not in values}
        return {**left_out, **values}

    def bind(self, values: Mapping[str, Any], ctx: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and the keyword arguments with which to call the tool's function. `values` are the
        model's arguments, as `decode` returned them. `ctx` is the tool context (the object by which a tool reaches its
        run), and is passed only if the function has a parameter for it."""
        args: list[Any] = [ctx] if self._context_positional else []
        kwargs = dict(values)
        for name, parameter in self._known.items():
            if parameter.positional:
                args.append(kwargs.pop(name, parameter.default))
        if self.context is not None and not self._context_positional:
            kwargs[self.context] = ctx
        return args, kwargs


def read_parameters(
    fn: Callable[..., Any], *, skip_first: bool = False, namespace: Mapping[str, Any] | None = None
) -> tuple[Parameters, str]:
    """Read the parameters of a function. Return them and the first paragraph of its docstring. Raises `InvalidInput` if
    a model could not call the function.

    `skip_first` leaves out the first parameter, such as `self`. `namespace` holds local names that annotations may use.
    """
    what = f"the tool {getattr(fn, '__name__', type(fn).__name__)!r}"
    description, described = read_docstring(inspect.getdoc(bare_function(fn)))
    hints = read_hints(fn, what, namespace or {})
    known: list[_Parameter] = []
    rest = context = None
    context_positional = False
    for place, parameter in enumerate(inspect.signature(fn).parameters.values()):
        name, hint = parameter.name, hints.get(parameter.name, Any)
        if place == 0 and skip_first:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise InvalidInput(f"{what} takes *{name}, which a model cannot give by name. Take a list instead.")
        positional = parameter.kind is parameter.POSITIONAL_ONLY
        if is_context(hint):
            if context is not None:
                raise InvalidInput(f"{what} takes two ToolContexts, {context!r} and {name!r}. One is enough.")
            if positional and known:
                raise InvalidInput(f"{what}: a positional-only ToolContext comes first, and {name!r} does not.")
            context, context_positional = name, positional
            continue
        made = _Parameter(
            name,
            Any if hint is object else hint,
            required=parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD,
            default=parameter.default,
            positional=positional,
            adapter=_adapter(hint, what, name),
        )
        if parameter.kind is parameter.VAR_KEYWORD:
            rest = made
        else:
            known.append(made)
    schema = _schema(known, rest, described, what)
    return Parameters(
        schema, tuple(known), rest=rest, context=context, context_positional=context_positional
    ), description


def _adapter(hint: Any, what: str, name: str) -> Any:
    if not _pydantic.needs_pydantic(hint):
        return None
    try:
        return _pydantic.make_adapter(hint)
    except Exception as error:  # pydantic has many, and users add more
        raise InvalidInput(f"{what}: pydantic cannot read the type of {name!r}: {error}") from error


def _schema(
    known: list[_Parameter], rest: _Parameter | None, described: Mapping[str, str], what: str
) -> dict[str, Any]:
    every = [*known, rest] if rest is not None else known
    plain = [parameter for parameter in every if parameter.adapter is None]
    for parameter in plain:
        _check(parameter, what)
    made, shared = msgspec.json.schema_components(
        [parameter.hint for parameter in plain], schema_hook=_schema_hook, ref_template="#/$defs/{name}"
    )
    by_name = {parameter.name: dict(schema) for parameter, schema in zip(plain, made, strict=True)}
    theirs, also_shared = _pydantic.schemas({one.name: one.adapter for one in every if one.adapter is not None})
    for name in shared.keys() & also_shared.keys():
        raise InvalidInput(f"{what} uses two types called {name!r}, one of them pydantic's. Rename one.")
    by_name.update(theirs)
    properties: dict[str, Any] = {}
    for parameter in known:
        schema = by_name[parameter.name]
        text = _annotated(parameter.hint) or described.get(parameter.name)
        if text and "description" not in schema:
            schema = {"description": text, **schema}
        if not parameter.required:
            schema = {**schema, **_default(parameter.default)}
        properties[parameter.name] = schema
    whole: dict[str, Any] = {"type": "object", "properties": properties}
    if required := [parameter.name for parameter in known if parameter.required]:
        whole["required"] = required
    whole["additionalProperties"] = by_name[rest.name] if rest is not None else False
    if defs := {**shared, **also_shared}:
        whole["$defs"] = defs
    return whole


def _check(parameter: _Parameter, what: str) -> None:
    """Raise `InvalidInput` if no JSON value can be converted to the parameter's type, so that this is found before a
    model calls the tool. `what` names the tool in the message."""
    try:
        msgspec.json.schema(parameter.hint, schema_hook=_schema_hook)
        msgspec.json.Decoder(parameter.hint, dec_hook=_decode_hook)
    except (TypeError, NotImplementedError, NameError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise InvalidInput(
            f"{what}: the parameter {parameter.name!r} has a type that JSON cannot give it: {reason}. Use basic types, "
            "dataclasses, TypedDicts, msgspec Structs or pydantic models; a ToolContext is given by the agent."
        ) from error


def _schema_hook(kind: type) -> dict[str, Any]:
    if isinstance(kind, type) and issubclass(kind, PurePath):
        return {"type": "string", "format": "path"}
    raise NotImplementedError(f"{kind!r} is not supported")


def _decode_hook(kind: type, value: Any) -> Any:
    if issubclass(kind, PurePath) and isinstance(value, str):
        return (Path if kind in (Path, PurePath) else kind)(value)
    raise TypeError(f"Expected `path`, got `{type(value).__name__}`")


def _annotated(hint: Any) -> str:
    """Return the text in `Annotated[..., "text"]`, or "" if there is none."""
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((mark for mark in marks if isinstance(mark, str)), "")


def _default(value: Any) -> dict[str, Any]:
    try:
        return {"default": msgspec.json.decode(msgspec.json.encode(value, enc_hook=_pydantic.dump))}
    except (TypeError, ValueError, NotImplementedError, OverflowError):
        return {}


def _decode(parameter: _Parameter, given: Any) -> tuple[Any, list[tuple[str, str, Any]]]:
    """Convert one argument. Return the value and an empty list, or None and a list of problems. Each problem has three
    fields: the path to the wrong part inside the value, the reason, and the wrong part itself."""
    if given is None and parameter.default is None:
        return None, []
    value, wrong = _convert(parameter, given)
    if wrong and isinstance(given, str) and given.lstrip()[:1] in ("{", "["):
        try:  # some models give an object as text that holds its JSON
            again = _convert(parameter, msgspec.json.decode(given))
        except msgspec.DecodeError:
            return value, wrong
        return again if not again[1] else (value, wrong)
    return value, wrong


def _convert(parameter: _Parameter, given: Any) -> tuple[Any, list[tuple[str, str, Any]]]:
    if parameter.adapter is not None:
        return _pydantic.validate(parameter.adapter, given)
    try:
        return msgspec.convert(given, parameter.hint, dec_hook=_decode_hook), []
    except msgspec.ValidationError as error:
        message = str(error)
    try:  # accept "5" for 5: only after the strict reading failed, so that a text stays a text
        return msgspec.convert(given, parameter.hint, strict=False, dec_hook=_decode_hook), []
    except msgspec.ValidationError:
        return None, [_explain(message, given, parameter.hint)]


def _explain(message: str, given: Any, hint: Any) -> tuple[str, str, Any]:
    place = _PLACE.search(message)
    reason = _PLACE.sub("", message).replace("`", "")
    path = place[1] if place else ""
    if reason.startswith("Invalid enum value") and not path:
        reason = f"expected {_expected(msgspec.json.schema(hint, schema_hook=_schema_hook))}"
    for name, index in _STEP.findall(path):
        if name and isinstance(given, Mapping) and name in given:
            given = given[name]
        elif index and isinstance(given, (list, tuple)) and int(index) < len(given):
            given = given[int(index)]
    return path, reason[:1].lower() + reason[1:], given


def _expected(schema: Mapping[str, Any]) -> str:
    """Describe in a few words which value a JSON schema expects, such as "a string"."""
    if "$defs" in schema and "$ref" in schema:
        schema = schema["$defs"].get(str(schema["$ref"]).rpartition("/")[2], schema)
    if "enum" in schema:
        return "one of " + ", ".join(shown(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_expected(choice) for choice in schema["anyOf"])
    kind = schema.get("type")
    if isinstance(kind, str):
        return f"{'an' if kind[0] in 'aio' else 'a'} {kind}" if kind != "null" else "null"
    return "an object" if "$ref" in schema else "a value"


_SPHINX = re.compile(r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*?\s)?\*{0,2}(\w+)\s*:\s*(.*)")
_SPHINX_OTHER = re.compile(r":\w+[^:]*:")
_GOOGLE = re.compile(r"(Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Other Parameters):\s*$")
_GOOGLE_OTHER = re.compile(
    r"(Returns?|Yields?|Raises|Examples?|Notes?|Attributes|See Also|Todo|Warnings?|Warns|References):\s*$"
)
_GOOGLE_ITEM = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY_ITEM = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")
_NUMPY_OURS = {"parameters", "other parameters"}
_RULE = re.compile(r"(-{3,}|={3,})\s*$")


def read_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """Return the first paragraph of a docstring as one line, and a dict with the description of each parameter. Reads
    the styles of Google, NumPy and Sphinx."""
    lines = inspect.cleandoc(text or "").splitlines()
    return _first_paragraph(lines), {**_numpy(lines), **_google(lines), **_sphinx(lines)}


def _first_paragraph(lines: list[str]) -> str:
    found: list[str] = []
    for number, line in enumerate(lines):
        underlined = number + 1 < len(lines) and _RULE.match(lines[number + 1])
        if (
            not line.strip()
            or _GOOGLE.match(line)
            or _GOOGLE_OTHER.match(line)
            or _SPHINX_OTHER.match(line)
            or underlined
        ):
            break
        found.append(line.strip())
    return " ".join(found)


def _google(lines: list[str]) -> dict[str, str]:
    return _items(_section(lines), _GOOGLE_ITEM)


def _section(lines: list[str]) -> Iterator[str]:
    """Yield the indented lines that stand in a docstring under one of the headings for parameters, such as `Args:`."""
    inside = False
    for line in lines:
        if not line.startswith((" ", "\t")) and line.strip():
            inside = bool(_GOOGLE.match(line))
        elif inside:
            yield line


def _items(lines: Iterator[str], pattern: re.Pattern[str]) -> dict[str, str]:
    """Return a dict from parameter names to descriptions, read from these lines of a docstring. `pattern` matches the
    line that begins a description, with the name and the first words as its groups. Lines that are indented further
    continue the description."""
    found: dict[str, list[str]] = {}
    margin, name = -1, ""
    for line in lines:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        if margin < 0:
            margin = indent
        match = pattern.match(line.strip()) if indent <= margin else None
        if match:
            name = match[1]
            found[name] = [match[2]]
        elif name and indent > margin:
            found[name].append(line.strip())
        else:
            name = ""
    return _joined(found)


def _numpy(lines: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    inside, names = False, list[str]()
    for number, line in enumerate(lines):
        if _RULE.match(line):
            continue
        if number + 1 < len(lines) and line.strip() and _RULE.match(lines[number + 1]):
            inside, names = line.strip().lower() in _NUMPY_OURS, []
        elif inside and line.startswith((" ", "\t")):
            for name in names:
                found[name].append(line.strip())
        elif inside and (match := _NUMPY_ITEM.match(line)):
            names = [name.strip().lstrip("*") for name in match[1].split(",")]
            found.update({name: [] for name in names})
    return _joined(found)


def _sphinx(lines: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        match = _SPHINX.match(line)
        if match:
            name = match[1]
            found[name] = [match[2]]
        elif name and line.startswith((" ", "\t")):
            found[name].append(line.strip())
        else:
            name = ""
    return _joined(found)


def _joined(found: dict[str, list[str]]) -> dict[str, str]:
    texts = {name: " ".join(part for part in parts if part).strip() for name, parts in found.items()}
    return {name: text for name, text in texts.items() if text}


def bare_function(fn: Any) -> Any:
    """Return the plain function inside a partial, a wrapper, a bound method or a callable object."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        elif inspect.ismethod(fn):
            fn = fn.__func__
        elif not inspect.isfunction(fn) and inspect.ismethod(getattr(fn, "__call__", None)):  # noqa: B004
            fn = fn.__call__.__func__
        else:
            return fn


def read_hints(fn: Callable[..., Any], what: str, namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the types of a function's parameters, by name. The return type is not read. `namespace` holds names that
    annotations may use besides the global names of the function's module. Raises `InvalidInput` if an annotation cannot
    be evaluated; `what` names the tool in the message."""
    inner = bare_function(fn)
    annotations = {name: hint for name, hint in getattr(inner, "__annotations__", {}).items() if name != "return"}
    known = getattr(inner, "__globals__", {})
    local = {name: value for name, value in {"ToolContext": ToolContext, **namespace}.items() if name not in known}
    holder = types.SimpleNamespace(__annotations__=annotations)
    try:
        return get_type_hints(holder, dict(known), local, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise InvalidInput(
            f"{what} has an annotation that cannot be read: {error}. Import its type where the function is defined, "
            "not under TYPE_CHECKING."
        ) from error


def is_context(hint: Any) -> bool:
    """Return whether the type is `ToolContext` or `ToolContext | None`."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(is_context(choice) for choice in get_args(hint))
    return hint is ToolContext
