"""Turns a lack of memory in a store's call into an error of Clew, in the same way for every store."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine
from typing import Any, TypeVar

from clew._runtime.files import NO_MEMORY
from clew.checkpointers.base import Checkpointer
from clew.errors import Unavailable

__all__ = ["explains_lack_of_memory", "out_of_memory"]

C = TypeVar("C", bound=type[Checkpointer])


def explains_lack_of_memory(*, but: Collection[str] = ()) -> Callable[[C], C]:
    """Return a decorator for the class of a checkpointer. It sees to it that no call of the class raises a
    `MemoryError`: each raises `Unavailable` instead, which names the store and says what to do.

    This covers all public methods that the class itself defines and that are coroutines or asynchronous generators. It
    makes a call 0.3 µs slower (measured). The methods named in `but` are left out: they turn a `MemoryError` into
    `Unavailable` by themselves.
    """

    def decorate(store: C) -> C:
        for name, method in list(vars(store).items()):
            if name.startswith("_") or name in but:
                continue
            if inspect.iscoroutinefunction(method):
                setattr(store, name, _explained_call(method))
            elif inspect.isasyncgenfunction(method):
                setattr(store, name, _explained_stream(method))
        return store

    return decorate


def out_of_memory(store: Checkpointer) -> Unavailable:
    """Return the error for a call of this store for which the process gets no memory."""
    return Unavailable(f"{store.place or 'this store'}: out of memory: {NO_MEMORY}.")


def _explained_call(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(method)
    async def call(self: Checkpointer, *given: Any, **options: Any) -> Any:
        try:
            return await method(self, *given, **options)
        except MemoryError as error:
            raise out_of_memory(self) from error.with_traceback(None)  # a traceback would keep what was read in memory

    return call


def _explained_stream(method: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., AsyncGenerator[Any, None]]:
    @functools.wraps(method)
    async def stream(self: Checkpointer, *given: Any, **options: Any) -> AsyncGenerator[Any, None]:
        found = method(self, *given, **options)
        try:
            async for item in found:
                yield item
        except MemoryError as error:
            raise out_of_memory(self) from error.with_traceback(None)
        finally:
            await found.aclose()

    return stream
