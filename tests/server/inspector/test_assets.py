"""The looks that can be measured: colours that can be read, and one dark theme however it was chosen."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

STYLE = (files("clew.server.inspector") / "static" / "inspector.css").read_text()
SCRIPT = (files("clew.server.inspector") / "static" / "inspector.js").read_text()


def _theme(selector: str) -> dict[str, str]:
    block = STYLE.partition(f"{selector} {{")[2].partition("}")[0]
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", block))


LIGHT, DARK = _theme(":root"), _theme(':root[data-theme="dark"]')
PAIRS = [
    *((ink, ground) for ink in ("ink", "soft", "accent") for ground in ("ground", "sheet", "sunken")),
    *((kind, ground) for kind in ("bad", "warn", "good", "accent") for ground in (f"{kind}-ground", "sheet", "ground")),
    ("ink", "accent-ground"),
    ("soft", "accent-ground"),
    ("ink", "warn-ground"),
    ("ink", "bad-ground"),
    ("on-accent", "accent"),
]


def _brightness(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("ink", "ground"), PAIRS)
def test_text_stands_out_from_its_ground(theme: dict[str, str], ink: str, ground: str) -> None:
    high, low = sorted((_brightness(theme[ink]), _brightness(theme[ground])), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_dark_is_the_same_whether_the_system_or_the_reader_chose_it() -> None:
    assert _theme(':root:not([data-theme="light"])') == DARK


def test_nothing_is_asked_of_any_other_server() -> None:
    assert not re.search(r"https?://|@import|url\(", STYLE)
    assert not re.search(r"https?://|\beval\(|new Function", SCRIPT)
