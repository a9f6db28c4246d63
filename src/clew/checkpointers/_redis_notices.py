"""What a server's settings mean for what it has acknowledged, said before it is lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

__all__ = ["notices"]

_FIX = "Run CONFIG SET {} and put the same in its configuration file."


def notices(settings: Mapping[str, str] | None, expiring: bool) -> Iterator[str]:
    """One sentence for each setting under which an acknowledged append can be lost; none if all is well."""
    if settings is None or "appendonly" not in settings:
        yield (
            "the server does not tell its settings (CONFIG is forbidden), so it cannot be known whether acknowledged "
            "appends survive a crash of the server. They do with appendonly yes and appendfsync always."
        )
        return
    if settings["appendonly"] != "yes":
        yield (
            "acknowledged appends can be lost: the server keeps no append-only file (appendonly is no), so a crash loses "
            "all since its last snapshot. " + _FIX.format("appendonly yes and CONFIG SET appendfsync always")
        )
    elif (sync := settings.get("appendfsync")) != "always":
        lost = "the last second or two" if sync == "everysec" else "what the system had not yet written"
        yield (
            f"acknowledged appends can be lost: appendfsync is {sync}, so a crash of the machine loses {lost}. "
            + _FIX.format("appendfsync always")
        )
    elif settings.get("no-appendfsync-on-rewrite") == "yes":
        yield (
            "acknowledged appends can be lost: no-appendfsync-on-rewrite is yes, so nothing is synced while the server "
            "rewrites its files. " + _FIX.format("no-appendfsync-on-rewrite no")
        )
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy.startswith("allkeys-") or (expiring and policy.startswith("volatile-")):
        yield (
            f"threads can vanish: maxmemory-policy is {policy}, so the server evicts keys when its memory is full. "
            + _FIX.format("maxmemory-policy noeviction")
        )
