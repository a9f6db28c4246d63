"""The client of one checkpointer: its connections, its scripts, what is tried again, and errors in Clew's words."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from clew.checkpointers._redis_keys import FORMAT, Layout
from clew.checkpointers._redis_notices import notices
from clew.checkpointers._redis_scripts import Script
from clew.checkpointers._redis_url import Address, Options
from clew.checkpointers.checks import Guard
from clew.errors import ClewError, Corrupt, InvalidInput, MissingExtra, NewerFormat, Unavailable

if TYPE_CHECKING:
    from redis.asyncio import Connection, Redis
    from redis.asyncio.cluster import RedisCluster

__all__ = ["Call", "Engine"]

T = TypeVar("T")
log = logging.getLogger("clew.checkpointers.redis")

CONNECTIONS = 32
"""Calls under way at once; the others wait. Those that reach the server together share its sync."""
CONNECT_WITHIN = 5.0
"""Seconds to wait for a connection."""
PAUSE = 0.1
"""Seconds after which a call whose connection broke is made once more: a server that restarts is a hiccup."""

_said: set[tuple[str, str]] = set()


class Call(NamedTuple):
    """One call of a script. All of its keys are in one slot."""

    script: Script
    keys: Sequence[bytes]
    args: Sequence[bytes | int] = ()

    def command(self, text: bool = False) -> tuple[bytes | str | int, ...]:
        """By the script's name, or by its text where the server does not know it yet."""
        how = ("EVAL", self.script.text) if text else ("EVALSHA", self.script.sha)
        return (*how, len(self.keys), *self.keys, *self.args)


class Engine:
    """Runs scripts and commands on a server or a cluster.

    Every call that it is given may be made again: so one whose connection broke is, once.
    """

    def __init__(self, address: Address, options: Options, layout: Layout, guard: Guard) -> None:
        try:
            import redis.asyncio as driver
            from redis import exceptions
        except ImportError:
            raise MissingExtra("the Redis store", "redis") from None
        self._driver = driver
        self._errors = exceptions
        self._address = address
        self._options = options
        self._layout = layout
        self._guard = guard
        self._client: Redis | RedisCluster | None = None
        self._lines: list[Connection] = []
        self._ready = False
        self._opening = asyncio.Lock()
        self._turns = asyncio.Semaphore(CONNECTIONS)
        self._busy = 0
        self._idle = asyncio.Event()

    @contextmanager
    def use(self) -> Iterator[asyncio.AbstractEventLoop]:
        """Around every call of the checkpointer: refuses those that cannot work, and lets close wait for the others."""
        loop = self._guard.enter()
        self._busy += 1
        try:
            yield loop
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()

    async def run(self, call: Call, *, wait: bool = False) -> Any:
        """The result of this script; with `wait`, once the replicas that were asked for have it."""
        if wait and self._options.wait_replicas:
            [result] = await self.run_all([call], wait=True)
            return result

        async def work(client: Any) -> Any:
            try:
                return await self._ask(client, call.command())
            except self._errors.NoScriptError:
                return await self._ask(client, call.command(text=True))

        return await self._attempt(work)

    async def _ask(self, client: Any, command: Sequence[bytes | str | int]) -> Any:
        """One command on a connection that stays at hand. Measured: to take one from the pool and put it back for each
        takes as long as the server needs for an append."""
        if self._options.cluster:
            return await client.execute_command(*command)
        line = self._lines.pop() if self._lines else await client.connection_pool.get_connection()
        try:
            await line.send_packed_command(_pack(command), check_health=False)
            answer = await line.read_response()
        except self._errors.ResponseError:
            self._lines.append(line)
            raise
        except BaseException:
            await client.connection_pool.release(line)  # closed by now, and opened anew when it is needed
            raise
        self._lines.append(line)
        return answer

    async def _drop_lines(self) -> None:
        """One connection broke, so the others may have too: the pool looks at each before it hands it out again."""
        lines, self._lines = self._lines, []
        client: Any = self._client
        for line in lines:
            await client.connection_pool.release(line)

    async def run_all(self, calls: Sequence[Call], *, wait: bool = False) -> list[Any]:
        """The results of these scripts, sent together; each is one step, all of them are not."""
        results: list[Any] = []
        if calls:
            wait = wait and self._options.wait_replicas > 0
            results = await self._attempt(lambda client: self._run_all(client, calls, wait))
        return results

    async def _run_all(self, client: Any, calls: Sequence[Call], wait: bool) -> list[Any]:
        results = await self._pipeline(client, [call.command() for call in calls], wait)
        unknown = [n for n, result in enumerate(results) if isinstance(result, self._errors.NoScriptError)]
        if unknown:
            again = [calls[n].command(text=True) for n in unknown]
            for n, result in zip(unknown, await self._pipeline(client, again, wait), strict=True):
                results[n] = result
        return results

    async def commands(self, commands: Sequence[tuple[str | bytes, ...]]) -> list[Any]:
        """The results of these commands, sent together."""
        return await self._attempt(lambda client: self._pipeline(client, commands, False))

    async def _pipeline(self, client: Any, commands: Sequence[tuple[Any, ...]], wait: bool) -> list[Any]:
        pipe = client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        if wait:
            pipe.execute_command("WAIT", self._options.wait_replicas, int(self._options.timeout * 500))
        results: list[Any] = await pipe.execute(raise_on_error=False)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, self._errors.NoScriptError):
                raise result
        if wait and (confirmed := results.pop()) < self._options.wait_replicas:
            raise Unavailable(
                f"{self._address}: {confirmed} of {self._options.wait_replicas} replicas have confirmed the write within "
                f"{self._options.timeout / 2:g} s. It is on the primary; make the same call again, or ask for fewer."
            )
        return results

    async def _attempt(self, work: Callable[[Any], Awaitable[T]]) -> T:
        async with self._turns:
            try:
                return await self._once(work)
            except self._broken as error:
                if not self._worth_another(error):
                    raise self._explain(error) from error
            except self._foreign as error:
                raise self._explain(error) from error
            await self._drop_lines()
            await asyncio.sleep(PAUSE)
            try:
                return await self._once(work)
            except self._foreign as error:
                raise self._explain(error) from error

    async def _once(self, work: Callable[[Any], Awaitable[T]]) -> T:
        async with asyncio.timeout(self._options.timeout):
            return await work(await self._connected())

    @property
    def _broken(self) -> tuple[type[Exception], ...]:
        """What ends a call whose server is away, moving, or not the primary any more."""
        errors = self._errors
        return (
            errors.ConnectionError,
            errors.ReadOnlyError,
            errors.ClusterDownError,
            errors.TryAgainError,
            errors.MasterDownError,
            errors.RedisClusterException,
            OSError,
        )

    @property
    def _foreign(self) -> tuple[type[Exception], ...]:
        return self._errors.RedisError, self._errors.RedisClusterException, OSError

    def _worth_another(self, error: Exception) -> bool:
        refused = self._errors.AuthenticationError, self._errors.AuthorizationError, self._errors.TimeoutError
        return not isinstance(error, (*refused, TimeoutError))

    async def _connected(self) -> Redis | RedisCluster:
        """The client, once the server is known to hold what this code can read."""
        if self._client is not None and self._ready:
            return self._client
        async with self._opening:
            if self._client is None:
                self._client = self._make()
            if not self._ready:
                await self._check_format(self._client)
                await self._give_notice(self._client)
                self._ready = True
        return self._client

    def _make(self) -> Redis | RedisCluster:
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        address = self._address
        given: dict[str, Any] = {
            "host": address.host,
            "port": address.port,
            "username": address.username,
            "password": address.password,
            "socket_timeout": None,  # one timer around a whole call is cheaper than one for each read and write
            "socket_connect_timeout": min(CONNECT_WITHIN, self._options.timeout),
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            **({} if address.tls is None else {"ssl": True, **address.tls}),
        }
        if self._options.cluster:
            return self._driver.RedisCluster(**given, max_connections=2 * CONNECTIONS)
        return self._driver.Redis(**given, db=address.db)

    async def _check_format(self, client: Any) -> None:
        """Mark a store that is new; refuse one that a newer Clew has written."""
        found = await client.get(self._layout.format)
        if found is None:
            await client.set(self._layout.format, FORMAT, nx=True)
        elif not found.isdigit():
            raise Corrupt(
                f"{self._layout.format} in {self._address} is no version. Take another prefix, or restore it."
            )
        elif int(found) > FORMAT:
            raise NewerFormat(f"the store in {self._address}", int(found), FORMAT)

    async def _give_notice(self, client: Any) -> None:
        """Say once in this process what makes acknowledged writes losable on this server."""
        for settings in await self._settings(client):
            for notice in notices(settings, self._options.ttl is not None):
                if (str(self._address), notice) not in _said:
                    _said.add((str(self._address), notice))
                    log.warning("%s: %s", self._address, notice)

    async def _settings(self, client: Any) -> list[dict[str, str] | None]:
        """The settings of each primary that matter; None where the server does not tell."""
        found: list[dict[str, str] | None] = []
        for node in client.get_primaries() if self._options.cluster else [None]:
            where = {} if node is None else {"target_nodes": node}
            try:
                settings = {}
                for pattern in ("*append*", "maxmemory-policy"):
                    settings.update(await client.config_get(pattern, **where))
                found.append({_text(name): _text(value) for name, value in settings.items()})
            except self._errors.ResponseError:
                found.append(None)
        return found

    def _explain(self, error: Exception) -> ClewError:
        """The same fact in Clew's words: what happened, at which server, and what to do."""
        errors, text = self._errors, _told(error)
        if isinstance(error, errors.MovedError | errors.ClusterCrossSlotError):
            return InvalidInput(f"{self._address} is a server of a cluster. Add cluster=true to the URL.")
        if text.startswith("WRONGTYPE"):
            return Corrupt(
                f"{self._address}: a key of this store holds something else. Restore it, or take another prefix."
            )
        if isinstance(error, errors.AuthenticationError | errors.AuthorizationError):
            hint = "it does not take this user name and password; check them in the URL"
        elif isinstance(error, errors.NoPermissionError):
            hint = f"this user may not do what the store needs: all commands of scripting, on keys {self._keys}"
        elif isinstance(error, errors.TimeoutError | TimeoutError):
            hint = f"it did not answer within {self._options.timeout:g} s; try again"
        elif isinstance(error, errors.OutOfMemoryError):
            hint = "its memory is full; nothing stored was harmed. Raise maxmemory, delete threads or run gc"
        elif text.startswith("MISCONF"):
            hint = "it cannot write to its disk; nothing stored was harmed. See its log, then try again"
        elif isinstance(error, errors.ReadOnlyError):
            hint = "it is a replica; name the primary, or try again after the failover"
        elif isinstance(error, errors.ConnectionError | OSError):
            hint = "check that it runs and can be reached, then try again"
        else:
            hint = "try again"
        return Unavailable(f"{self._address}: {text}: {hint}.")

    @property
    def _keys(self) -> str:
        return f"{self._options.prefix}*"

    async def close(self) -> None:
        while self._busy:
            self._idle.clear()
            await self._idle.wait()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def _pack(command: Sequence[bytes | str | int]) -> list[bytes]:
    """A command as it goes over the wire, in pieces."""
    pieces = [b"*%d\r\n" % len(command)]
    for part in command:
        data = part if isinstance(part, bytes) else str(part).encode()
        pieces += (b"$%d\r\n" % len(data), data, b"\r\n")
    return pieces


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _told(error: Exception) -> str:
    """What the server or the system said, without arguments of the command: those may be content."""
    text = str(error) or type(error).__name__
    return text.split(", with args beginning")[0].split(" of pipeline caused error")[0].rstrip(". ")[:300]
