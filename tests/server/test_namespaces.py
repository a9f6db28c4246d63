"""Tenants: whatever a client calls its namespace, it stays in the token's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.checkpointers.checks import check_namespace
from clew.errors import InvalidInput
from clew.server.auth import in_store

TENANTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
INNER = st.text(alphabet=st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=250)


@given(TENANTS, INNER, TENANTS, INNER)
def test_no_two_pairs_share_a_namespace(tenant: str, inner: str, other: str, others: str) -> None:
    same = (tenant, inner) == (other, others)
    assert (in_store(tenant, inner) == in_store(other, others)) == same


def test_what_looks_like_another_tenant_is_not() -> None:
    names = [
        ("team", "a"),
        ("team", "/a"),
        ("team", "#a"),
        ("team", ""),
        ("team-a", ""),
        ("t", "eam/a"),
        ("team", "../a"),
    ]
    assert len({in_store(*name) for name in names}) == len(names)


@given(TENANTS)
def test_the_longest_namespace_of_a_client_fits(tenant: str) -> None:
    longest = in_store(tenant, "é" * 512)
    check_namespace(longest)
    assert longest != in_store(tenant, "é" * 511 + "e")


def test_the_operator_uses_namespaces_as_they_are() -> None:
    assert in_store("*", "team/a") == "team/a" == in_store("team", "a")
    assert in_store("*", "") == ""


def test_a_namespace_that_no_store_could_keep_is_invalid() -> None:
    with pytest.raises(InvalidInput):
        in_store("team", "x" * 1025)
