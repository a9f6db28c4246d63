"""`@tool`: makes a function a tool and records what an agent must know about it, above all what may happen if it runs
again."""

from __future__ import annotations

import dis
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from types import CodeType
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, cast, get_args, overload

import msgspec
from blake3 import blake3

from clew.errors import InvalidInput
from clew.models.base import ToolSpec
from clew.tools.schema import Parameters, bare_function, read_parameters

__all__ = ["AnyTool", "Effect", "InDoubt", "Tool", "as_tool", "tool", "uses_steps"]


Effect = Literal["none", "idempotent", "steps", "once"]
"""What may be done with a call in doubt, which is a call that was begun and whose outcome is not on record.

`"none"`: the tool changes nothing, so the call is run again. `"idempotent"`: running it again with the same
`ctx.idempotency_key` has the same effect as running it once, so it is run again. `"steps"`: it is run again, but steps
(`ctx.step`) with a recorded value are not: they return that value. `"once"`: it is not run again, unless `reconcile` or
a person says so.
"""
InDoubt = Literal["tell", "ask"]
"""What to do with a `"once"` call in doubt if no `reconcile` function settles it. `"tell"`: tell the model that the
outcome is unknown. `"ask"`: ask a person."""

P = ParamSpec("P")
R = TypeVar("R")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Tool(Generic[P, R]):
    """A function that a model can call, made by `@tool`. Its attributes must not be changed. Calling it calls the
    function as if it were not decorated."""

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        name: str,
        description: str,
        parameters: Parameters,
        effect: Effect = "once",
        reconcile: Callable[..., Any] | None = None,
        in_doubt: InDoubt = "tell",
        timeout: float | None = None,
        retries: int = 0,
        approve: bool | Callable[..., Any] = False,
        needs_workspace: bool = False,
        goes_on: bool = False,
        unbound: bool = False,
    ) -> None:
        _check(name, effect, reconcile, in_doubt, timeout, retries, approve)
        self.fn = fn
        self.name = name
        self.description = description
        self.parameters = parameters
        self.effect: Effect = effect
        self.reconcile = reconcile
        self.in_doubt: InDoubt = in_doubt
        self.timeout = timeout
        self.retries = retries
        self.approve = approve
        self.needs_workspace = needs_workspace
        self.is_async = inspect.iscoroutinefunction(bare_function(fn))
        self.goes_on = goes_on or not self.is_async
        """Whether the tool's body may go on after a timeout or a cancellation: in an OS thread, or on another machine.
        """
        self.unbound = unbound
        """True for a method that was decorated in a class and is not bound to an instance yet."""
        self.__doc__ = fn.__doc__
        self.__name__ = name
        self.__wrapped__ = fn

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        return self.parameters.schema

    @property
    def digest(self) -> str:
        """The blake3 hash of the tool's name, description, schema and `effect` (what may happen if a call is run
        again). It is recorded, so that a resumed thread notices when a tool has changed."""
        told = [self.name, self.description, self.schema, self.effect]
        return blake3(msgspec.json.encode(told, order="deterministic")).hexdigest()

    @property
    def spec(self) -> ToolSpec:
        """Name, description and schema of the tool, as they are given to a model."""
        return ToolSpec(self.name, self.description, self.schema)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Tool[..., R]:
        """Make a tool that was decorated as a method work like a method. If it is looked up on an object, return a tool
        that is bound to that object. If it is looked up on the class, or was not made from a method, return it
        unchanged."""
        if instance is None or not self.unbound:
            return cast("Tool[..., R]", self)
        return Tool(
            self.fn.__get__(instance, owner),
            name=self.name,
            description=self.description,
            parameters=self.parameters,
            effect=self.effect,
            reconcile=self.reconcile,
            in_doubt=self.in_doubt,
            timeout=self.timeout,
            retries=self.retries,
            approve=self.approve,
            needs_workspace=self.needs_workspace,
        )

    def __repr__(self) -> str:
        return f"<Tool {self.name} effect={self.effect}>"


AnyTool: TypeAlias = Tool[..., Any]


@overload
def tool(fn: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect | None = None,
    reconcile: Callable[..., Any] | None = None,
    in_doubt: InDoubt = "tell",
    timeout: float | None = None,
    retries: int = 0,
    approve: bool | Callable[..., Any] = False,
    needs_workspace: bool = False,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function, sync or async, a tool: `@tool`, or `@tool(effect="idempotent", timeout=30)`.

    The name is that of the function, and the description the first paragraph of its docstring. The schema is made from the
    type hints and defaults, with what the docstring (Google, NumPy or Sphinx) or `Annotated[..., "words"]` says about each
    parameter. The agent passes a parameter of the type `ToolContext` itself.

    Args:
        name: the name by which the model calls the tool, instead of the function's.
        description: what the model is told about the tool, instead of the docstring's first paragraph.
        effect: what may happen if a call that was begun is run again after a crash. `"none"`: the tool changes nothing.
            `"idempotent"`: running it twice has the same effect as running it once. `"steps"`: it may be run again, and
            its recorded steps (`ctx.step`) are not. `"once"`: it must not be run again. The default is `"once"`, the
            safe one, or `"steps"` if the function calls `step`, `interrupt` or `blocking` on its own context. Such a
            use is found only in the function itself: if it passes its context on to a helper, say `effect="steps"`.
        reconcile: a function, sync or async, that finds out whether a call in doubt took effect: a call that was begun,
            and whose outcome is not on record. It is called with `(ctx, **arguments)`; the arguments are converted, and
            defaults are included. It returns the call's result, or `NOT_DONE`, after which the call is run.
        in_doubt: what to do with a `"once"` call in doubt that `reconcile` does not settle: tell the model that the
            outcome is unknown (`"tell"`), or let the thread wait for a person (`"ask"`).
        timeout: how many seconds one attempt may take. An async tool is then cancelled, and the model is told. A sync tool
            cannot be stopped: it goes on in its OS thread, and its outcome is in doubt.
        retries: how often to try again after an exception or a timeout, with growing pauses. Not allowed with `"once"`.
        approve: whether a person must approve each call. It can be a function that decides for one call; it gets the
            arguments by their names, with defaults included.
        needs_workspace: whether the tool cannot work without `ctx.workspace`. An agent that has such a tool and no folder
            is refused before anything is run.
    """
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        raise InvalidInput(f"@tool has no option {unknown[0]}=. It takes {', '.join(sorted(_OPTIONS))}.")
    namespace = _callers_names()
    if fn is not None:
        return _make(fn, namespace, **options)
    return lambda fn: _make(fn, namespace, **options)


_OPTIONS = frozenset(
    ("name", "description", "effect", "reconcile", "in_doubt", "timeout", "retries", "approve", "needs_workspace")
)


def as_tool(fn: AnyTool | Callable[..., Any]) -> AnyTool:
    """Return a tool unchanged, or make a tool of a function. `Agent(tools=[…])` does this with each element. Raises
    `InvalidInput` if no tool can be made of it, and for a tool that is a method without its instance."""
    if not isinstance(fn, Tool):
        return _make(fn, _callers_names())
    if fn.unbound:
        raise InvalidInput(
            f"the tool {fn.name!r} is a method without its instance. Pass it from one: instance.{fn.name}"
        )
    return fn


def _make(
    fn: Any,
    namespace: Mapping[str, Any],
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect | None = None,
    **options: Any,
) -> AnyTool:
    if isinstance(fn, staticmethod):
        fn = fn.__func__
    if isinstance(fn, classmethod):
        raise InvalidInput("a tool cannot be a classmethod object. Make one of the bound method: tool(Class.method)")
    if isinstance(fn, Tool):
        raise InvalidInput(f"{fn.name!r} is a tool already. Decorate it once, with all options.")
    if not callable(fn) or isinstance(fn, type):
        raise InvalidInput(
            f"{fn!r} cannot be a tool, because it is not a function. Give a function, or a tool made with @tool."
        )
    inner = bare_function(fn)
    name = str(getattr(fn, "__name__", None) or getattr(inner, "__name__", "")) if name is None else name
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise InvalidInput(
            f"the tool {name!r} is a generator, and a call has one result. Collect what it yields and return that."
        )
    unbound = _is_method(fn)
    parameters, first_paragraph = read_parameters(fn, skip_first=unbound, namespace=namespace)
    if effect is None:
        effect = "steps" if uses_steps(inner, parameters.context) else "once"
    return Tool(
        fn,
        name=name,
        description=first_paragraph if description is None else description,
        parameters=parameters,
        effect=effect,
        unbound=unbound,
        **options,
    )


def _is_method(fn: Any) -> bool:
    """Return whether the function is defined in a class body and takes an instance of the class as its first parameter."""
    if not inspect.isfunction(fn) or "." not in fn.__qualname__.rpartition("<locals>.")[2]:
        return False
    first = next(iter(inspect.signature(fn).parameters.values()), None)
    return first is not None and first.name == "self" and first.annotation is first.empty


def _callers_names() -> dict[str, Any]:
    """Return the local variables, by name, of the user's code that makes the tool. They are needed because an
    annotation that is written as a string may name a local class. Empty if the tool is made at the top level of a
    module."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("clew.tools."):
        frame = frame.f_back
    return {} if frame.f_code.co_name == "<module>" else dict(frame.f_locals)


def _check(name: str, effect: Any, reconcile: Any, in_doubt: Any, timeout: Any, retries: Any, approve: Any) -> None:
    what = f"the tool {name!r}"
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{what}: a name must have 1 to 64 of the characters A-Z a-z 0-9 _ -, as vendors require. Give one: name=…"
        )
    if effect not in get_args(Effect):
        raise InvalidInput(f"{what}: effect= is one of {', '.join(get_args(Effect))}, and not {effect!r}")
    if in_doubt not in get_args(InDoubt):
        raise InvalidInput(f"{what}: in_doubt= is 'tell' or 'ask', and not {in_doubt!r}")
    if isinstance(timeout, bool) or not (timeout is None or (isinstance(timeout, (int, float)) and timeout > 0)):
        raise InvalidInput(f"{what}: timeout= is a number of seconds above 0, and not {timeout!r}")
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise InvalidInput(f"{what}: retries= is a whole number, 0 or more, and not {retries!r}")
    if retries and effect == "once":
        raise InvalidInput(
            f"{what} has retries={retries} and effect='once', which never runs again. If it may run again, say so: "
            "effect='idempotent', 'none' or 'steps'."
        )
    if reconcile is not None and not callable(reconcile):
        raise InvalidInput(f"{what}: reconcile= is a function, and not {reconcile!r}")
    if not isinstance(approve, bool) and not callable(approve):
        raise InvalidInput(f"{what}: approve= is True, False or a function of the arguments, and not {approve!r}")


_STEPS = {"step", "interrupt", "blocking"}


def uses_steps(fn: Any, context: str | None) -> bool:
    """Return whether the function's code calls `step`, `interrupt` or `blocking` on its own context. `context` is the
    name of the parameter that holds the context, or None if there is no such parameter; then the result is False.

    Other objects with such methods do not count: if `simulation.step()` were taken for a recorded step, a tool that
    must run once would be run again. To overlook a real use is safe: then the tool is not run again after a crash.
    """
    code = getattr(fn, "__code__", None)
    return context is not None and isinstance(code, CodeType) and _uses(code, context)


def _uses(code: CodeType, context: str) -> bool:
    for before, after in pairwise(dis.get_instructions(code)):
        if after.opname in ("LOAD_ATTR", "LOAD_METHOD") and after.argval in _STEPS and _loads(before, context):
            return True
    return any(
        _uses(inner, context)
        for inner in code.co_consts
        if isinstance(inner, CodeType) and context in inner.co_freevars  # a function inside that uses the same context
    )


def _loads(instruction: dis.Instruction, name: str) -> bool:
    if not instruction.opname.startswith("LOAD_"):
        return False
    value = instruction.argval  # newer Pythons load two names with one instruction
    return value == name or (isinstance(value, tuple) and value[-1:] == (name,))
