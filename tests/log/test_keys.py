"""Encryption: what is sealed opens with its key, in its place, and nowhere else."""

from __future__ import annotations

import base64

import pytest

from clew.errors import InvalidInput, NotSealed, WrongKey
from clew.log import FIRST, StateSet, decode_frame, decode_ordinary, encode_entries, encode_frame
from clew.log.blobs import pack_blob, unpack_blob
from clew.log.keys import Keyring

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
SECRET = "the launch code is 0000"


def sealed(keys: Keyring, thread_id: str = "t", number: int = 0, previous: bytes = FIRST) -> bytes:
    entries = encode_entries([StateSet("secret", SECRET)])
    return encode_frame([entries], previous=previous, thread_id=thread_id, number=number, keys=keys).data


def test_a_sealed_frame_opens_with_its_key() -> None:
    keys = Keyring(KEY)
    assert decode_frame(sealed(keys), "t", 0, keys=keys).entries == [StateSet("secret", SECRET)]


def test_nothing_of_the_content_shows() -> None:
    assert SECRET.encode() not in sealed(Keyring(KEY))
    assert SECRET.encode() not in pack_blob(SECRET.encode(), Keyring(KEY))[1]


@pytest.mark.parametrize("keys", [None, Keyring(OTHER)])
def test_a_missing_or_wrong_key_is_named_by_its_id(keys: Keyring | None) -> None:
    needed = Keyring(KEY).current
    with pytest.raises(WrongKey, match=f"thread 't', frame 0 is encrypted, and it needs the key with the id {needed}"):
        decode_frame(sealed(Keyring(KEY)), "t", 0, keys=keys)
    digest, packed = pack_blob(b"data", Keyring(KEY))
    with pytest.raises(WrongKey, match=needed):
        unpack_blob(digest, packed, keys)


def test_a_frame_does_not_open_in_another_thread_or_place() -> None:
    keys = Keyring(KEY)
    data = sealed(keys, "t", 3)
    for thread_id, number in (("u", 3), ("t", 2), ("t", 4)):
        with pytest.raises(WrongKey, match="does not open in this place"):
            decode_frame(data, thread_id, number, keys=keys)


def test_a_frame_does_not_open_behind_another_predecessor() -> None:
    from blake3 import blake3

    keys = Keyring(KEY)
    data = sealed(keys)
    moved = data[:14] + bytes([1]) * 16 + data[30:-16]
    with pytest.raises(WrongKey):
        decode_frame(moved + blake3(moved).digest(16), "t", 0, keys=keys)


def test_after_a_rotation_the_old_key_reads_and_the_new_one_writes() -> None:
    old, new = Keyring(KEY), Keyring([OTHER, KEY])
    assert decode_frame(sealed(old), "t", 0, keys=new).entries == [StateSet("secret", SECRET)]
    with pytest.raises(WrongKey, match=new.current):
        decode_frame(sealed(new), "t", 0, keys=old)


def test_plain_frames_and_blobs_are_read_with_a_key_only_if_that_is_allowed() -> None:
    plain = encode_frame([encode_entries([StateSet("k", 1)])], previous=FIRST).data
    digest, packed = pack_blob(b"plain")
    with pytest.raises(NotSealed, match=r"thread 't', frame 0 is not sealed .* allow_plain=True"):
        decode_frame(plain, "t", 0, keys=Keyring(KEY))
    with pytest.raises(NotSealed, match=f"blob {digest} is not sealed"):
        unpack_blob(digest, packed, Keyring(KEY))
    assert decode_ordinary([plain], Keyring(KEY)) is None
    lenient = Keyring(KEY, allow_plain=True)
    assert decode_frame(plain, "t", 0, keys=lenient).entries == [StateSet("k", 1)]
    assert unpack_blob(digest, packed, lenient) == b"plain"


def test_a_head_is_signed_by_the_first_key_and_known_by_all() -> None:
    seal = Keyring([KEY, OTHER]).sign_head(b"head")
    assert Keyring([OTHER, KEY]).has_signed_head(b"head", seal, "it")
    assert not Keyring(KEY).has_signed_head(b"another head", seal, "it")
    assert not Keyring(KEY).has_signed_head(b"head", seal[:-2] + "00", "it")
    assert not Keyring(KEY).has_signed_head(b"head", seal[:16], "it")
    assert not Keyring(KEY).has_signed_head(b"head", "no hex", "it")
    with pytest.raises(WrongKey, match="it is encrypted, and it needs the key with the id"):
        Keyring(OTHER).has_signed_head(b"head", seal, "it")


def test_equal_blobs_under_one_key_are_one_and_under_another_are_another() -> None:
    assert pack_blob(b"same", Keyring(KEY)) == pack_blob(b"same", Keyring(KEY))
    assert pack_blob(b"same", Keyring(KEY))[0] != pack_blob(b"same", Keyring(OTHER))[0]
    digest, packed = pack_blob(b"same", Keyring(KEY))
    assert unpack_blob(digest, packed, Keyring(KEY)) == b"same"


def test_large_values_and_bodies_are_sealed_too() -> None:
    keys = Keyring(KEY)
    entries = [StateSet("long", SECRET * 10_000)]
    frame = encode_frame([encode_entries(entries)], previous=FIRST, thread_id="t", keys=keys)
    assert all(SECRET.encode() not in data for data in (frame.data, *frame.blobs.values()))
    assert decode_frame(frame.data, "t", 0, frame.blobs, keys).entries == entries


@pytest.mark.parametrize(
    "given",
    [KEY, KEY.hex(), base64.b64encode(KEY).decode(), base64.urlsafe_b64encode(KEY).decode().rstrip("=")],
)
def test_a_key_is_bytes_or_their_hex_or_base64(given: str | bytes) -> None:
    assert Keyring(given).current == Keyring(KEY).current


@pytest.mark.parametrize("given", ["", "hunter2", b"short", "x" * 64, "ü" * 43, b"\0" * 33])
def test_what_is_no_key_is_refused_without_being_shown(given: str | bytes) -> None:
    with pytest.raises(InvalidInput, match="a key is 32 bytes") as caught:
        Keyring(given)
    assert not given or str(given) not in str(caught.value)


def test_a_keyring_never_shows_its_keys() -> None:
    keys = Keyring([KEY, OTHER])
    for secret in (KEY, OTHER):
        assert secret.hex() not in repr(keys)
        assert repr(secret) not in repr(keys)
    assert keys.current in repr(keys)


def test_several_keys_are_read_from_a_setting() -> None:
    assert Keyring.from_text(f"{OTHER.hex()}, {KEY.hex()}").current == Keyring(OTHER).current
