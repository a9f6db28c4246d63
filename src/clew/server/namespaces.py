"""From a token's namespace and a client's namespace inside it to one of the store: no two pairs are the same."""

from __future__ import annotations

from blake3 import blake3

from clew.checkpointers.base import MAX_ID
from clew.checkpointers.checks import check_namespace
from clew.server.tokens import EVERY_NAMESPACE

__all__ = ["in_store"]


def in_store(tenant: str, inner: str) -> str:
    """`tenant`, or `tenant/inner`; `tenant#` and the blake3 of `inner` where that is too long for a namespace.

    A tenant's name holds neither `/` nor `#`, so the first of them in a namespace ends the tenant, and nothing that a
    client sends leads out of its own tenant. The operator's `*` stands for no tenant: the client's namespace is the
    store's, and with it every tenant's.
    """
    check_namespace(inner)
    if tenant == EVERY_NAMESPACE:
        return inner
    if not inner:
        return tenant
    whole = f"{tenant}/{inner}"
    return whole if len(whole.encode()) <= MAX_ID else f"{tenant}#{blake3(inner.encode()).hexdigest()}"
