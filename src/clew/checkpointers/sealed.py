"""Defines `SealedCheckpointer`, a store whose threads are encrypted with keys. It signs each head that it writes and
checks each head that it reads. So nobody without a key can cut off or replace a log unnoticed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence

import msgspec

from clew.checkpointers.base import Checkpointer
from clew.checkpointers.heads import UNSEALED, Head, HeadQuery, unlisted
from clew.checkpointers.marks import Marks
from clew.checkpointers.out_of_memory import explains_lack_of_memory
from clew.checkpointers.wrapper import WrappedCheckpointer
from clew.errors import Corrupt, NotSealed, WrongKey
from clew.log.keys import Keyring

__all__ = ["SealedCheckpointer", "without_keys"]

_encode = msgspec.msgpack.Encoder(order="deterministic").encode
"""Encodes a head whose field `seal` is empty: the seal is a signature of these bytes. They do not depend on the order
of the head's tags."""


@explains_lack_of_memory()
class SealedCheckpointer(WrappedCheckpointer):
    """A store whose threads are encrypted with `keys`. `open_checkpointer` returns one if it is given a key.

    The caller encrypts and decrypts frames and blobs, with `keys`. This class signs heads: each head carries a seal (a
    signature) over all its fields, among them the thread's id, the number of frames, the digest of the last one, the
    log's id and the lease. Every head that is read is checked. A head that was changed without a key raises `Corrupt`;
    a head without a seal raises `NotSealed`, unless the keys allow plain data.

    An older head of the same thread has a valid seal too. So somebody who can write to the store, and kept a copy of
    it, can put back a thread as it once was. Only a record outside the store shows that: `marks`, the newest state that
    this machine has seen of each thread. A thread that is older than its mark raises `Corrupt`.

    Closing this closes `store`.
    """

    def __init__(self, store: Checkpointer, keys: Keyring, *, marks: Marks | None = None) -> None:
        super().__init__(store)
        self._keys = keys
        self._marks = marks if store.place else None  # no other process can open a store without a place

    @property
    def keys(self) -> Keyring | None:
        return self._keys

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        plain = msgspec.structs.replace(head, seal="")
        sealed = msgspec.structs.replace(head, seal=self._keys.sign_head(_encode(plain)))
        await self.store.append(thread_id, frames, at=at, head=sealed, refs=refs)
        if self._marks is not None:
            self._marks.see(self.place, plain)

    async def head(self, thread_id: str) -> Head | None:
        head = await self.store.head(thread_id)
        return None if head is None else await self._newest(self._unsealed(head, thread_id))

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        damaged: list[Corrupt] = []
        plain: list[str] = []
        locked: WrongKey | None = None
        async for stored in self.store.heads(query):
            try:
                head = self._unsealed(stored, stored.thread_id)
                is_there = await self._newest(head) is not None
            except NotSealed:
                plain.append(stored.thread_id)
            except Corrupt as error:
                damaged.append(error)
            except WrongKey as error:
                locked = error
            else:
                if is_there:
                    yield head
        if plain:
            damaged.append(NotSealed(f"thread {plain[0]!r}{f' (and {len(plain) - 1} more)' if plain[1:] else ''}"))
        if damaged:
            raise damaged[0] if len(damaged) == 1 else unlisted(damaged)
        if locked is not None:
            raise locked

    async def _newest(self, head: Head) -> Head | None:
        """Check that a head is not older than the thread's mark (the newest state that this machine has seen), and
        bring the mark up to date. Returns the head.

        If the head is older, it is read from the store again, because another process may have written it meanwhile.
        Then this returns the newer head, or None if the thread was deleted. Raises `Corrupt` if the head is still
        older.
        """
        if self._marks is None or self._marks.see(self.place, head):
            return head
        again = await self.store.head(head.thread_id)  # another process here may have written the thread and its mark
        if again is None:
            return None
        newer = self._unsealed(again, head.thread_id)
        if not self._marks.see(self.place, newer):
            raise self._marks.error(self.place, newer)
        return newer

    def _unsealed(self, head: Head, thread_id: str) -> Head:
        """Check that somebody with a key wrote this head for the thread with this id, and return the head without its
        seal. The seal is a signature that only somebody with a key can make.

        Raises `NotSealed` if the head has no seal and the keys do not allow that, `WrongKey` if it was sealed with
        another key, and `Corrupt` if its seal is wrong.
        """
        what = f"thread {thread_id!r}"
        if not head.seal:
            if not self._keys.allow_plain:
                raise NotSealed(what)
            return msgspec.structs.replace(head, seal=UNSEALED)
        plain = msgspec.structs.replace(head, seal="")
        if head.thread_id != thread_id or not self._keys.has_signed_head(
            _encode(plain), head.seal, f"the head of {what}"
        ):
            raise Corrupt(
                f"{what}: its head was changed by somebody who does not have the key, or by a newer Clew. Restore the "
                "thread from a copy."
            )
        return plain


def without_keys(store: Checkpointer) -> Checkpointer:
    """Return the store that a `SealedCheckpointer` wraps; it gives heads unchecked, with their seals (signatures).
    Return any other store as it is."""
    return store.store if isinstance(store, SealedCheckpointer) else store
