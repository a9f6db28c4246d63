"""Makes the blocking form of an async class or function by inspecting it, so that both always have the same methods.

`clew.sync` has one event loop, in an OS thread of its own. Methods and properties of an async object run there, because
that is the only place where they may be used. Their results are converted too: an async iterator to an iterator, an
object of an async class to its blocking form. A method that returns a run blocks until it has the run's result, except
for `stream`, which returns the run to be iterated. `async with` becomes `with`. The context of the async object is
entered in one asyncio task and left in another, so an async class must not keep a task group open in between.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import types
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from clew.agent import Agent, Run, Session
from clew.checkpointers import Checkpointer
from clew.errors import UsageError
from clew.sync._portal import call, close_at_exit, stop_at_exit
from clew.threads import Thread
from clew.workspace import Workspace

__all__ = [
    "ASYNC_CLASSES",
    "OWN_METHODS",
    "Blocking",
    "blocking",
    "documentation",
    "is_turned",
    "public_names",
    "return_annotation",
]

ASYNC_CLASSES: tuple[type, ...] = (Agent, Checkpointer, Run, Session, Thread, Workspace)
"""Classes whose objects can be used only on an event loop, and so need a blocking form. All other classes are the same
in `clew` and in `clew.sync`."""

OWN_METHODS = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}
_ASYNC_RETURNS = re.compile(r"\bAsync(Iterator|Iterable)\b")
_COROUTINE = re.compile(r"Coroutine\[Any, Any, (.*)\]")
_RUN = re.compile(r"\bRun\[(\w+)\]")
_STREAM = "stream"
"""The method that returns a run to be iterated. All other methods that return a run block until they have its result."""
_ASYNC_WORDS = re.compile(r"\b(?:an async |async (?=with|for)|await )")
_NESTING = (list, tuple, set, frozenset)
_END = object()


class Blocking:
    """The blocking form of an object that can be used only on the event loop. Calls on the blocking form are made on
    the original object, in the OS thread of the event loop."""

    __slots__ = ("__weakref__", "_origin", "_pid")
    _origin: Any
    _pid: int

    def __repr__(self) -> str:
        return f"<blocking {self._origin!r}>"


def blocking(value: Any) -> Any:
    """Return the blocking form of a public class or function of `clew`. A value that needs none is returned unchanged."""
    if not is_turned(value):
        return value
    return _blocking_class(value) if isinstance(value, type) else _class_level(value, value)


def is_turned(value: Any) -> bool:
    """Return whether `clew.sync` needs a blocking form (one that is used without `await`) of a value of `clew`. That is
    so for an async function, for the classes whose objects can be used only on an event loop (`ASYNC_CLASSES`) and
    their subclasses, and for a function that returns an object of one of these classes."""
    if isinstance(value, type):
        return issubclass(value, ASYNC_CLASSES)
    if not inspect.isroutine(value):
        return False
    returned = set(re.findall(r"\w+", str(inspect.signature(value).return_annotation)))
    return inspect.iscoroutinefunction(value) or not returned.isdisjoint(cls.__name__ for cls in ASYNC_CLASSES)


def public_names(cls: type) -> list[str]:
    """Return the names of the members of an async class that its blocking form has too: the public ones, and the
    methods behind `async with` and `async for`."""
    return [name for name in dir(cls) if not name.startswith("_") or name in OWN_METHODS]


def return_annotation(name: str, annotation: str) -> str:
    """Return the return annotation of a blocking method, given the name and the return annotation of the async one. For
    example, `Run[RunResult]` becomes `RunResult`, except for the method `stream`."""
    blocking = annotation if name == _STREAM else _RUN.sub(r"\1", annotation)
    return _COROUTINE.sub(r"\1", _ASYNC_RETURNS.sub(r"\1", blocking))


def documentation(text: str | None) -> str | None:
    """Return the docstring for the blocking form of a class or function: the original docstring `text`, without the
    words `async` and `await`."""
    if not text:
        return text
    return _ASYNC_WORDS.sub(lambda found: "a " if found[0] == "an async " else "", text)


def _blocking_class(cls: type[Any]) -> type[Blocking]:
    if cls in _made:
        return _made[cls]
    bases = tuple(_blocking_class(base) for base in cls.__bases__ if issubclass(base, ASYNC_CLASSES)) or (Blocking,)
    members: dict[str, Any] = {
        "__slots__": (),
        "__module__": "clew.sync",
        "__qualname__": cls.__name__,
        "__doc__": documentation(cls.__doc__),
        "__init__": _constructor(cls),
    }
    if hasattr(cls, "__class_getitem__"):
        members["__class_getitem__"] = classmethod(types.GenericAlias)
    for name in public_names(cls):
        members[OWN_METHODS.get(name, name)] = _member(cls, name)
    return _made.setdefault(cls, type(cls.__name__, bases, members))


_made: dict[type[Any], type[Blocking]] = {}


def _constructor(cls: type) -> Callable[..., None]:
    @functools.wraps(cls.__init__)  # type: ignore[misc]
    def construct(self: Blocking, /, *args: Any, **kwargs: Any) -> None:
        _bind(self, cls(*map(_origin, args), **_origins(kwargs)))

    return construct


def _bind(form: Blocking, origin: Any) -> None:
    form._origin, form._pid = origin, os.getpid()
    if isinstance(origin, Checkpointer):
        close_at_exit(origin)
    elif isinstance(origin, Agent):
        stop_at_exit(origin)


def _form_of(origin: Any) -> Blocking:
    cls = _blocking_class(type(origin))
    form = cls.__new__(cls)
    _bind(form, origin)
    return form


def _member(cls: type, name: str) -> Any:
    found = inspect.getattr_static(cls, name)
    if isinstance(found, staticmethod):
        return staticmethod(_class_level(found.__func__, found.__func__))
    if isinstance(found, classmethod):
        return staticmethod(_class_level(getattr(cls, name), getattr(cls, name)))
    if inspect.isfunction(found):
        return _method(name, found)
    return property(
        _method(name, lambda self: getattr(self, name), attribute=True), doc=documentation(inspect.getdoc(found))
    )


def _class_level(function: Callable[..., Any], original: Any) -> Callable[..., Any]:
    """Return the blocking form of a plain function, a static method or a class method. If the function is async it runs
    on the event loop, otherwise in the OS thread of the caller. `original` provides name, docstring and signature."""
    through_loop = inspect.iscoroutinefunction(function)

    def forward(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tuple(map(_origin, args)), _origins(kwargs)
        return _turned(call(function, *args, **kwargs) if through_loop else function(*args, **kwargs))

    return _dressed(forward, original)


def _method(name: str, original: Callable[..., Any], *, attribute: bool = False) -> Callable[..., Any]:
    def forward(self: Blocking, /, *args: Any, **kwargs: Any) -> Any:
        origin = _origin(self)
        if attribute:
            result = call(getattr, origin, name)
        elif name == "__aenter__":
            result = _entered(origin)
        elif name == "__anext__":
            result = _advanced(origin)
        else:
            method = (
                getattr(origin, name) if name == _STREAM or name in OWN_METHODS else _finishing(getattr(origin, name))
            )
            result = call(method, *map(_origin, args), **_origins(kwargs))
        return self if result is origin else _turned(result)

    return _dressed(forward, original)


def _finishing(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper around `method`, a method of an async object. If the method returns a run, the wrapper returns a
    coroutine that waits for the end of the run and gives its result. Any other value that the method returns is passed
    on as it is."""

    def begin(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        return _finished(result) if isinstance(result, Run) else result

    return begin


async def _finished(run: Run[Any]) -> Any:
    return await run


def _entered(origin: Any) -> Any:
    """Enter the async context of `origin`, an async object, and return what entering gives. If the caller is
    interrupted (Ctrl+C) just after that, leave the context again: the caller's `with` block has not begun, and so would
    not leave it."""
    entered = False

    async def enter() -> Any:
        nonlocal entered
        value = await origin.__aenter__()
        entered = True
        return value

    try:
        return call(enter)
    except BaseException as error:
        if entered:
            call(origin.__aexit__, type(error), error, error.__traceback__)
        raise


def _advanced(run: Run[Any]) -> Any:
    """Return the next event of a run. Raises `StopIteration` at the end. If the caller is interrupted (Ctrl+C) while it
    waits, stop the run and then raise: the code that handles the interrupt may have no reference to the run."""
    try:
        event = call(anext, run, _END)
    except BaseException:
        call(run.aclose)
        raise
    if event is _END:
        raise StopIteration
    return event


def _dressed(forward: Callable[..., Any], original: Any) -> Callable[..., Any]:
    """Give the wrapper `forward` the name, the docstring and the signature of the original, changed to their blocking
    forms. Return it."""
    functools.update_wrapper(forward, original)
    signature = inspect.signature(original)
    if isinstance(signature.return_annotation, str):
        signature = signature.replace(
            return_annotation=return_annotation(original.__name__, signature.return_annotation)
        )
    forward.__signature__ = signature  # type: ignore[attr-defined]
    forward.__doc__ = documentation(forward.__doc__)
    forward.__name__ = OWN_METHODS.get(forward.__name__, forward.__name__)
    return forward


def _origin(value: Any) -> Any:
    """Return the async object behind a blocking one, or any other value unchanged. Blocking objects in a list, tuple or
    set, such as `tools=[agent]`, are replaced too. Raises `UsageError` in a forked child process."""
    if not isinstance(value, Blocking):
        nests = type(value) in _NESTING and any(isinstance(item, Blocking) for item in value)
        return type(value)(map(_origin, value)) if nests else value
    _check_process(value._pid, type(value).__name__)
    return value._origin


def _origins(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _origin(value) for name, value in values.items()} if values else values


def _check_process(pid: int, what: str) -> None:
    if pid != os.getpid():
        raise UsageError(
            f"this {what} was made in process {pid} and this is its forked child {os.getpid()}. "
            "Make agents and open checkpointers of its own in the child."
        )


def _turned(result: Any) -> Any:
    if isinstance(result, ASYNC_CLASSES):
        return _form_of(result)
    return _iterated(result, os.getpid()) if isinstance(result, AsyncIterator) else result


def _iterated(source: AsyncIterator[Any], pid: int) -> Iterator[Any]:
    """Yield the items of the async iterator `source`, each fetched on the event loop when the caller asks for it. If
    the caller stops before the end, `source` is closed on the event loop once it is garbage-collected. Raises
    `UsageError` in any process but the one with the id `pid`, for example in a forked child."""
    _check_process(pid, "listing")
    while (item := call(anext, source, _END)) is not _END:
        yield _turned(item)
        _check_process(pid, "listing")
