"""Splits items into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["batches"]

T = TypeVar("T")


def batches(
    items: Iterable[T], most: int | None = None, *, size: Callable[[T], int] | None = None, largest: int = 0
) -> Iterator[list[T]]:
    """Split items, in order, into lists of at most `most` items each; if `most` is None, of any length.

    If `size` is given, a function that returns the size of an item, the sizes in each list also add up to at most
    `largest`. A single item that is larger forms a list of its own.
    """
    batch: list[T] = []
    total = 0
    for item in items:
        weight = size(item) if size else 0
        if batch and (len(batch) == most or (size is not None and total + weight > largest)):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += weight
    if batch:
        yield batch
