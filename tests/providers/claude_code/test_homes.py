"""Where sessions are kept. The names are those that the real program made for such folders."""

from __future__ import annotations

import pytest

from clew.providers.claude_code.storage import slug

_LONG = "/srv/clew-slug/" + "l" * 100 + "/" + "m" * 120 + "/ünï codé 😀"


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("/home/user/work", "-home-user-work"),
        ("/srv/a b.c/😀_é", "-srv-a-b-c-----"),
        ("/srv/e\u0301x", "-srv-e-x"),
    ],
)
def test_a_folders_project_is_its_path_with_a_dash_for_each_other_unit(folder: str, name: str) -> None:
    assert slug(folder) == name


def test_a_long_path_is_cut_and_hashed() -> None:
    assert slug(_LONG) == "-srv-clew-slug-" + "l" * 100 + "-" + "m" * 84 + "-d2inkm"


def test_a_path_of_just_the_length_is_not_cut() -> None:
    folder = "/" + "x" * 199
    assert slug(folder) == "-" + "x" * 199
