"""Nonces: no two are ever the same, in a forked child either."""

from __future__ import annotations

import os
import sys

import pytest

from clew.log.codec import new_nonce as nonce


def test_nonces_never_repeat() -> None:
    assert len({nonce() for _ in range(5000)}) == 5000


@pytest.mark.skipif(sys.platform == "win32", reason="no fork there")
def test_a_forked_child_has_nonces_of_its_own() -> None:
    nonce()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"".join(nonce() for _ in range(300)))
        os._exit(0)
    os.close(writing)
    theirs = b""
    while part := os.read(reading, 65536):
        theirs += part
    os.close(reading)
    os.waitpid(child, 0)
    mine = {nonce() for _ in range(1000)}
    assert not mine & {theirs[place : place + 12] for place in range(0, len(theirs), 12)}
