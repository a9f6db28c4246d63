"""The keys with which a store's frames and blobs are encrypted and its heads are signed.

The cipher is AES-256-GCM: without the key no content can be read, and none can be added or changed unnoticed. A frame
is encrypted with random bytes (a nonce) and a key derived for its thread. The frame's header, thread and number are
authenticated too, so the frame cannot be decrypted in another place or after another frame. The nonce of a blob is
derived from its content, so that equal values under one key are the same blob and are stored once. A head is not
encrypted. It carries a code that only the key can make (a keyed blake3), so that nobody without the key can cut off the
end of a log unnoticed.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hmac
from collections.abc import Iterable
from typing import TYPE_CHECKING

from blake3 import blake3

from clew.errors import InvalidInput, MissingExtra, WrongKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["KEY_ID_SIZE", "Keyring"]

KEY_ID_SIZE = 8
_NONCE_SIZE = 12
_TAG_SIZE = 16


class Keyring:
    """One or several encryption keys. The first encrypts; all of them decrypt. `repr` of a keyring shows the ids of its
    keys, never the keys.

    A store with a keyring accepts only data that is encrypted with one of the keys. It refuses plain data, because
    anybody who can write to the store could have written that. With `allow_plain`, plain data is accepted too: use this
    for a store that has data from the time before it had a key.
    """

    def __init__(self, keys: str | bytes | Iterable[str | bytes], *, allow_plain: bool = False) -> None:
        _aesgcm()  # reports a missing extra now instead of at the first append
        given = [keys] if isinstance(keys, str | bytes) else list(keys)
        self._keys = {_key_id(key): key for key in map(_key, given)}
        if not self._keys:
            raise InvalidInput("a keyring needs at least one key")
        self._current = next(iter(self._keys))
        self.allow_plain = allow_plain

    @classmethod
    def from_text(cls, text: str, *, allow_plain: bool = False) -> Keyring:
        """Read a keyring from a text of keys in hex or base64, separated by commas.

        The first key encrypts; all of them decrypt. `allow_plain` says whether plain data is accepted too.
        """
        return cls([part.strip() for part in text.split(",") if part.strip()], allow_plain=allow_plain)

    @property
    def current(self) -> str:
        """The id of the key that encrypts: the first key of the keyring."""
        return self._current.hex()

    def __repr__(self) -> str:
        return f"Keyring({', '.join(key_id.hex() for key_id in self._keys)})"

    def seal_frame(self, data: bytes, nonce: bytes, thread_id: str, bound: bytes) -> bytes:
        """Encrypt a frame's payload (its content) with a key derived for this thread, and return the result.

        `nonce` must be random and never used again. `bound` is not encrypted and not part of the result, but decryption
        fails unless exactly the same `bound` is given: so the frame cannot be decrypted in another place.
        """
        return self._current + _frame_cipher(self._keys[self._current], thread_id).encrypt(nonce, data, bound)

    def open_frame(self, sealed: bytes, nonce: bytes, thread_id: str, bound: bytes, what: str) -> bytes:
        """Decrypt what `seal_frame` returned, and return the frame's payload (its content). Raises `WrongKey` if the
        keyring lacks the key, or if `nonce`, `thread_id` or `bound` is not the same as when the frame was encrypted.

        `what` names the frame in the error message.
        """
        key = self._find(sealed[:KEY_ID_SIZE], what)
        return _decrypt(_frame_cipher(key, thread_id), nonce, sealed[KEY_ID_SIZE:], bound, what)

    def seal_blob(self, data: bytes) -> bytes:
        """Encrypt a blob and return the result. Equal data under the same key gives equal bytes, so that equal blobs
        are stored once."""
        key = self._keys[self._current]
        nonce = blake3(data, key=_derived(key, "nonce of a blob")).digest(_NONCE_SIZE)
        return self._current + nonce + _blob_cipher(key).encrypt(nonce, data, self._current)

    def open_blob(self, sealed: bytes, what: str) -> bytes:
        """Decrypt what `seal_blob` returned, and return the blob. Raises `WrongKey` if the keyring lacks the key or the
        encrypted bytes were changed.

        `what` names the blob in the error message.
        """
        key_id = sealed[:KEY_ID_SIZE]
        nonce, data = sealed[KEY_ID_SIZE : KEY_ID_SIZE + _NONCE_SIZE], sealed[KEY_ID_SIZE + _NONCE_SIZE :]
        return _decrypt(_blob_cipher(self._find(key_id, what)), nonce, data, key_id, what)

    def sign_head(self, data: bytes) -> str:
        """Return a signature of a thread's head, given the head's bytes, in hex. It consists of the id of the current
        key, and a code that only this key can make for these bytes."""
        return self.current + _head_code(self._keys[self._current], data).hex()

    def has_signed_head(self, data: bytes, seal: str, what: str) -> bool:
        """Return whether `seal` is a right signature of a thread's head, as `sign_head` makes it. `data` is the head's
        bytes. Raises `WrongKey` if the keyring lacks the key that made the signature. `what` names the head in the
        error message."""
        try:
            given = bytes.fromhex(seal)
        except ValueError:
            return False
        key = self._find(given[:KEY_ID_SIZE], what)
        return hmac.compare_digest(given[KEY_ID_SIZE:], _head_code(key, data))

    def _find(self, key_id: bytes, what: str) -> bytes:
        try:
            return self._keys[key_id]
        except KeyError:
            raise WrongKey(what, key_id.hex()) from None


def _key(given: str | bytes) -> bytes:
    """Return a key as 32 bytes. `given` is the key as bytes, or as text in hex or base64.

    Raises `InvalidInput` for anything else. The error message says only the length of `given`, because it may be a
    mistyped key.
    """
    if isinstance(given, bytes):
        key = given
    else:
        try:
            key = bytes.fromhex(given) if len(given) == 64 else base64.b64decode(_padded(given), b"-_", validate=True)
        except (ValueError, binascii.Error):
            key = b""
    if len(key) != 32:
        raise InvalidInput(
            f"a key is 32 bytes, or their text in hex or base64; the given one has length {len(given)}. "
            "Make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return key


def _padded(text: str) -> str:
    return text.replace("+", "-").replace("/", "_").rstrip("=") + "=" * (-len(text.rstrip("=")) % 4)


def _key_id(key: bytes) -> bytes:
    return blake3(key, derive_key_context="clew 2026 id of a key").digest(KEY_ID_SIZE)


@functools.lru_cache(64)
def _derived(key: bytes, use: str) -> bytes:
    return blake3(key, derive_key_context=f"clew 2026 {use}").digest()


def _head_code(key: bytes, data: bytes) -> bytes:
    return blake3(data, key=_derived(key, "heads")).digest(_TAG_SIZE)


@functools.lru_cache(1024)
def _frame_cipher(key: bytes, thread_id: str) -> AESGCM:
    return _aesgcm()(blake3(thread_id.encode(), key=_derived(key, "frames")).digest())


@functools.lru_cache(16)
def _blob_cipher(key: bytes) -> AESGCM:
    return _aesgcm()(_derived(key, "blobs"))


def _aesgcm() -> type[AESGCM]:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise MissingExtra("encryption", "encryption") from error
    return AESGCM


def _decrypt(cipher: AESGCM, nonce: bytes, data: bytes, bound: bytes, what: str) -> bytes:
    from cryptography.exceptions import InvalidTag

    if len(data) < _TAG_SIZE or len(nonce) != _NONCE_SIZE:
        raise WrongKey(what, None)
    try:
        return cipher.decrypt(nonce, data, bound)
    except InvalidTag:
        raise WrongKey(what, None) from None
