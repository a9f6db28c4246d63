"""Batches: in order, none too long or too large, nothing lost."""

from __future__ import annotations

from clew._runtime.batches import batches


def test_items_come_in_order_in_lists_of_at_most_so_many() -> None:
    assert list(batches(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(batches([], 3)) == []


def test_sizes_add_up_to_the_limit_at_most() -> None:
    assert list(batches(["ab", "c", "d", "efg", "h"], size=len, largest=3)) == [["ab", "c"], ["d"], ["efg"], ["h"]]


def test_a_single_item_over_the_limit_is_a_batch_of_its_own() -> None:
    assert list(batches(["a", "bcde", "f"], size=len, largest=3)) == [["a"], ["bcde"], ["f"]]


def test_number_and_size_both_hold() -> None:
    assert list(batches(["a", "b", "c", "def"], 2, size=len, largest=4)) == [["a", "b"], ["c", "def"]]
