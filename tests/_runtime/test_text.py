"""Values as people read them."""

from __future__ import annotations

import json
import sys
import unicodedata
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew._runtime.text import (
    ago,
    clock,
    cut,
    dollars,
    elapsed,
    one_line,
    plural,
    short_number,
    size,
    visible,
    visible_json,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "0s"), (0, "0s"), (59, "59s"), (60, "1m"), (3_599, "59m"), (7_200, "2h"), (200_000, "2d")],
)
def test_an_age_is_in_its_largest_unit(seconds: int, shown: str) -> None:
    assert ago(NOW - timedelta(seconds=seconds), NOW) == shown


def test_a_clock_time_has_its_day_unless_that_is_today() -> None:
    local = NOW.astimezone()
    assert clock(NOW, NOW) == f"{local:%H:%M:%S}"
    assert clock(NOW, NOW + timedelta(days=2)) == f"{local:%Y-%m-%d %H:%M:%S}"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0ms"),
        (0.03, "30ms"),
        (0.9994, "999ms"),
        (0.9996, "1.0s"),
        (9.94, "9.9s"),
        (12, "12s"),
        (250, "4m 10s"),
        (7_500, "2h 5m"),
    ],
)
def test_a_length_of_time_has_two_units_at_most(seconds: float, shown: str) -> None:
    assert elapsed(seconds) == shown


def test_money_below_a_cent_has_four_places_and_an_unknown_cost_is_not_zero() -> None:
    assert [dollars(cost) for cost in (None, 0.0, 0.0042, 0.01, 1234.5)] == [
        "?",
        "$0.00",
        "$0.0042",
        "$0.01",
        "$1234.50",
    ]


def test_numbers_and_sizes_are_short() -> None:
    assert [short_number(number) for number in (950, 12_345, 4_500_000)] == ["950", "12.3k", "4.5M"]
    assert [size(number) for number in (0, 1023, 1536, 3 * 2**20, 2**31)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 MiB",
        "2.0 GiB",
    ]
    assert [plural(number, "file") for number in (0, 1, 2)] == ["0 files", "1 file", "2 files"]


@given(st.text())
@pytest.mark.attack
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    assert not set(visible(text)) & {chr(number) for number in (*range(9), *range(11, 32), *range(127, 160))}
    assert "\n" not in one_line(text)


@pytest.mark.attack
def test_control_characters_are_shown_and_no_word_is_swallowed() -> None:
    text = "\x1b[31mred \x1b]0;title\x07and \x9b2J \x7f\u202eback\u2066\u2028\r\n\tend\rover\ud800"
    shown = "\\x1b[31mred \\x1b]0;title\\x07and \\x9b2J \\x7f\\u202eback\\u2066\\u2028\n\tend\\x0dover\\ud800"
    assert visible(text) == shown
    assert visible(shown) == shown


AROUND_NUMBERS = {*map(chr, range(0x600, 0x606)), *"\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"}
"""Characters of Arabic, Syriac and Kaithi that Unicode calls format characters, and that are seen: they have a shape."""
WITHOUT_WIDTH = {
    *"\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0", *map(chr, range(0xFE00, 0xFE10)),
    *map(chr, range(0xE0100, 0xE01F0)),
}  # fmt: skip
"""Characters that Unicode calls letters and marks, and that are shown as nothing (Default_Ignorable_Code_Point)."""
HIDDEN = [
    character
    for character in map(chr, range(sys.maxunicode + 1))
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") or character in WITHOUT_WIDTH
    if character not in AROUND_NUMBERS and character not in "\t\n"
]


@pytest.mark.attack
def test_nothing_that_unicode_says_is_not_seen_is_left() -> None:
    assert len(HIDDEN) > 2_500
    passed = [f"U+{ord(each):04X}" for each in HIDDEN if each in visible(f"a{each}b")]
    assert passed == []
    assert all(json.loads(visible_json(f'"{each}"')) == each for each in HIDDEN if each >= " ")


@pytest.mark.attack
def test_a_command_hidden_in_tags_and_marks_of_direction_is_shown() -> None:
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "rm")
    assert visible(f"safe{hidden}") == "safe\\U000e0072\\U000e006d"
    assert visible("a\u200eb\u200fc\u061cd\u200be\xadf") == "a\\u200eb\\u200fc\\u061cd\\u200be\\xadf"


@pytest.mark.parametrize("emoji", ["👩‍👩‍👧", "🏳️‍🌈", "❤️‍🔥", "☎️", "1️⃣", "#️⃣", "👩🏽‍🚀", "🇫🇷"])
def test_an_emoji_of_several_characters_stays_whole(emoji: str) -> None:
    assert visible(f"a {emoji} b{emoji}") == f"a {emoji} b{emoji}"


@pytest.mark.attack
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u200db", "a\\u200db"),
        ("😀\u200db", "😀\\u200db"),
        ("a\ufe0f", "a\\ufe0f"),
        ("1\ufe0f", "1\\ufe0f"),
        ("\ufe0f", "\\ufe0f"),
        ("☎\ufe0f\ufe0f", "☎\ufe0f\\ufe0f"),
        ("\u200d😀", "\\u200d😀"),
        ("x\ufe0f\u200d😀", "x\\ufe0f\\u200d😀"),
    ],
)
def test_outside_an_emoji_its_joiners_are_shown(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(shown) == shown


@pytest.mark.attack
def test_json_for_a_terminal_stands_for_the_same_value() -> None:
    value = {"a": "\x9b2J\u202e\u2028\x7f\x1b \u00e9"}
    text = visible_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert not set(text) & set("\x9b\u202e\u2028\x7f\x1b")


def test_a_cut_is_told() -> None:
    assert (cut("abcdef", 4), cut("abc", 3), cut("abc", None)) == ("abc…", "abc", "abc")
