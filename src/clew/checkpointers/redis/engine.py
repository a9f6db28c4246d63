"""The Redis client of one checkpointer: runs scripts and commands, repeats failed calls and translates errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from clew.checkpointers.checks import Guard, check_wanted
from clew.checkpointers.patience import Patience, unread_and_unsent
from clew.checkpointers.redis.address import Address, Options
from clew.checkpointers.redis.keys import FORMAT, Layout
from clew.checkpointers.redis.scripts import Script
from clew.errors import ClewError, Corrupt, InvalidInput, MissingExtra, NewerFormat, Unavailable

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.cluster import RedisCluster

__all__ = ["Call", "Engine", "Line", "notices"]

T = TypeVar("T")
Command = tuple[bytes | str | int, ...]
log = logging.getLogger("clew.checkpointers.redis")

CONNECTIONS = 32
"""The most calls of one checkpointer that run at once; further calls wait. If calls reach the server at the same time,
it syncs their writes to its disk together."""
CONNECT_WITHIN = 5.0
"""The most seconds to wait until a connection is made."""
PAUSE = 0.1
"""Seconds to wait before a call is repeated after its connection broke, so that a server may restart in between."""

SCANNED = 5000
"""About how many keys of the server one step of a scan looks at."""

_said: set[tuple[str, str]] = set()


class Call(NamedTuple):
    """One call of a Lua script, with its keys and arguments. In a cluster, all keys must be in the same hash slot."""

    script: Script
    keys: Sequence[bytes]
    args: Sequence[bytes | int] = ()

    def command(self, text: bool = False) -> Command:
        """Return the Redis command that calls the script by its hash. With `text`, return one that sends the whole
        script, for a server that does not have it yet."""
        how = ("EVAL", self.script.text) if text else ("EVALSHA", self.script.sha)
        return (*how, len(self.keys), *self.keys, *self.args)


class Line:
    """A connection to the server that is kept open. Its own `Patience` ends calls on this connection that make no
    progress."""

    __slots__ = ("connection", "patience")

    def __init__(self, connection: Any, patience: Patience) -> None:
        self.connection = connection
        self.patience = patience.part(self._sign)

    def begin(self, command: Command) -> bool:
        """Send a command and return at once; `talk` returns the answer later. So the server already works on the
        command while this process prepares to wait. Returns False, and sends nothing, if the connection is closed."""
        if self.connection.is_connected:
            self.connection._writer.write(_pack([command]))
        return bool(self.connection.is_connected)

    async def talk(self, commands: Sequence[Command], refusal: type[Exception], *, is_sent: bool) -> list[Any]:
        """Send commands and return the answers, in order. With `is_sent`, only wait for the answers, because `begin`
        has already sent the commands. If the server refuses a command, with an error of the type `refusal`, that error
        is returned as its answer. Every other error is raised."""
        connection = self.connection
        answers: list[Any] = []
        if not is_sent:
            await connection.send_packed_command(_pack(commands), check_health=False)
        for _ in commands:
            try:
                answers.append(await connection.read_response())
            except refusal as error:
                answers.append(error)
        return answers

    def _sign(self) -> object:
        """Return a value that changes while bytes are sent or received. The connection's `Patience`, which ends calls
        without progress, compares this value with an earlier one."""
        reader, writer = self.connection._reader, self.connection._writer
        return None if reader is None or writer is None else unread_and_unsent(reader, writer)


class Engine:
    """Runs Lua scripts and commands on a Redis server or a cluster.

    A call whose connection broke is repeated once, so callers may only pass scripts and commands that are safe to
    repeat.
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
        self._patience = Patience(str(address), options.timeout)
        self._lines: list[Line] = []
        self._ready = False
        self._opening = asyncio.Lock()
        self._turns = asyncio.Semaphore(CONNECTIONS)
        self._busy = 0
        self._idle = asyncio.Event()

    @contextmanager
    def use(self) -> Iterator[asyncio.AbstractEventLoop]:
        """Count a call of the checkpointer as running while the `with` block runs, so that `close` waits for it. Gives
        the block the running event loop. Raises `UsageError` after `close`, in a forked child, or on another event loop
        than the first call."""
        loop = self._guard.enter()
        self._busy += 1
        try:
            yield loop
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()

    def begin(self, call: Call) -> Line | None:
        """Send a script at once if a connection is idle, and return this connection, which is to be passed to `run`.
        Returns None if the script was not sent: then `run` sends it."""
        if not self._ready or not self._lines or self._turns.locked() or self._options.wait_replicas:
            return None
        line = self._lines.pop()
        if line.begin(call.command()):
            return line
        self._lines.append(line)
        return None

    async def run(self, call: Call, *, wait: bool = False, begun: Line | None = None) -> Any:
        """Run a script and return its result. With `wait`, return only once as many replicas as the option
        `wait_replicas` says have what the script wrote. Raises `Unavailable` if they do not confirm that in time.
        If `begun` is not None, `begin` has already sent the script, on this connection."""
        [result] = await self.run_all([call], wait=wait, begun=begun)
        return result

    async def run_all(self, calls: Sequence[Call], *, wait: bool = False, begun: Line | None = None) -> list[Any]:
        """Send these scripts together and return the result of each, in order. Each script is atomic, but scripts of
        other callers may run between them. With `wait`, return only once as many replicas as the option `wait_replicas`
        says have what the scripts wrote. Raises `Unavailable` if they do not confirm that in time. If `begun` is not
        None, `begin` has already sent the scripts, on this connection."""
        replicas = self._options.wait_replicas if wait else 0

        async def work(client: Any) -> list[Any]:
            nonlocal begun
            line, begun = begun, None  # a second attempt must take another connection
            results = await self._talk(client, [call.command() for call in calls], replicas, line)
            unknown = [n for n, result in enumerate(results) if isinstance(result, self._errors.NoScriptError)]
            if unknown:
                again = await self._talk(client, [calls[n].command(text=True) for n in unknown], replicas)
                for n, result in zip(unknown, again, strict=True):
                    results[n] = result
            return results

        return await self._attempt(work) if calls else []

    async def commands(self, commands: Sequence[Command]) -> list[Any]:
        """Send these Redis commands together and return the result of each, in order."""
        return await self._attempt(lambda client: self._talk(client, commands))

    async def scan(self, pattern: bytes) -> AsyncIterator[list[bytes]]:
        """Yield the names of all keys that match a pattern, in lists. A key that exists during the whole scan is
        yielded at least once, and perhaps twice. In a cluster, all primary servers are asked."""
        nodes = await self._attempt(self._primaries)
        for node in nodes:
            cursor = 0
            while True:
                cursor, names = await self._attempt(partial(self._scan, node, cursor, pattern))
                yield names
                if cursor == 0:
                    break

    async def publish(self, channel: str) -> None:
        """Send an empty message to those who listen to a channel now. In a cluster, the servers pass it on to each other."""
        if not self._options.cluster:
            await self.commands([("PUBLISH", channel, "")])
            return

        await self._attempt(
            lambda client: client.execute_command("PUBLISH", channel, "", target_nodes=client.get_random_node())
        )

    async def hear(self, channel: str) -> AsyncIterator[None]:
        """Yield once when the server was told that this process listens to a channel, and then after each message in it.
        Raises an error of the driver when the connection, which is its own, breaks. In a cluster, listens to the server
        that the URL names."""
        async with self._driver.Redis(**self._server()) as client, client.pubsub() as heard:
            await heard.subscribe(channel)
            while True:
                if await heard.get_message(timeout=None) is not None:
                    yield

    async def _scan(self, node: Any, cursor: int, pattern: bytes, client: Any) -> tuple[int, list[bytes]]:
        command = ("SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED)
        if node is None:
            [(following, names)] = await self._talk(client, [command])
        else:
            following, names = await client.execute_command(*command, target_nodes=node)
            following = next(iter(following.values()))
        return int(following), names

    async def _primaries(self, client: Any) -> list[Any]:
        return list(client.get_primaries()) if self._options.cluster else [None]

    async def _talk(
        self, client: Any, commands: Sequence[Command], replicas: int = 0, begun: Line | None = None
    ) -> list[Any]:
        """Send commands and return the server's answers. Raises the first error among the answers, except a
        `NoScriptError`, which is returned as an answer. With `replicas`, raises `Unavailable` unless at least that many
        replicas confirm the writes. If `begun` is not None, the commands were already sent on this connection."""
        if replicas:
            commands = [*commands, ("WAIT", replicas, int(self._options.timeout * 500))]
        if self._options.cluster:
            answers = await self._to_cluster(client, commands)
        else:
            answers = await self._on_line(client, commands, begun)
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, self._errors.NoScriptError):
                raise answer
        if replicas and (confirmed := answers.pop()) < replicas:
            raise Unavailable(
                f"{self._address}: {confirmed} of {replicas} replicas have confirmed the write within "
                f"{self._options.timeout / 2:g} s. It is on the primary; make the same call again, or ask for fewer."
            )
        return answers

    async def _to_cluster(self, client: Any, commands: Sequence[Command]) -> list[Any]:
        pipe = client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        answers: list[Any] = await self._patience.part().limit(pipe.execute(raise_on_error=False))
        return answers

    async def _on_line(self, client: Any, commands: Sequence[Command], begun: Line | None) -> list[Any]:
        """Send commands on a connection that is kept open, and return the answers. An error from the server is returned
        as an answer. If `begun` is not None, the commands were already sent on this connection. Connections are kept
        because taking one from the driver's pool takes as long as an append on the server (measured)."""
        line = begun or (self._lines.pop() if self._lines else await self._new_line(client))
        try:
            is_sent = begun is not None
            answers = await line.patience.limit(line.talk(commands, self._errors.ResponseError, is_sent=is_sent))
        except BaseException:
            await client.connection_pool.release(line.connection)  # it is closed; the pool opens it again when needed
            raise
        self._lines.append(line)
        return answers

    async def _new_line(self, client: Any) -> Line:
        return Line(await self._patience.part().limit(client.connection_pool.get_connection()), self._patience)

    async def _start_over(self) -> None:
        """Give all kept connections back to the driver's pool after one broke, because others may have broken too. The
        pool checks each before it is used again. In a cluster, close the client, so that it asks again which servers
        there are."""
        client: Any = self._client
        if client is not None and self._options.cluster:
            await client.aclose()
        lines, self._lines = self._lines, []
        for line in lines:
            await client.connection_pool.release(line.connection)

    async def _attempt(self, work: Callable[[Any], Awaitable[T]]) -> T:
        return await self._patience.limit(self._twice(work))

    async def _twice(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Call `work` with the connected client and return its result. If the connection broke, call it a second time.
        Raises a Clew error if that fails too, or at once for any other failure, such as a refused login."""
        async with self._turns:
            check_wanted()
            try:
                return await work(await self._connected())
            except self._broken as error:
                if not self._worth_another(error):
                    raise self._explain(error) from error
            except self._foreign as error:
                raise self._explain(error) from error
            await self._start_over()
            await asyncio.sleep(PAUSE)
            try:
                return await work(await self._connected())
            except self._foreign as error:
                raise self._explain(error) from error

    @property
    def _broken(self) -> tuple[type[Exception], ...]:
        """The driver's errors for a server that is gone, is moving hash slots to another server, or is no longer the
        primary."""
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
        """Return the client. Before its first use, make it, check the format version of the store, and log warnings
        about the server's settings."""
        if self._client is not None and self._ready:
            return self._client
        async with self._opening:
            if self._client is None:
                self._client = self._make()
            if not self._ready:
                await self._patience.part().limit(self._prepare(self._client))
                self._ready = True
        return self._client

    async def _prepare(self, client: Any) -> None:
        await self._check_format(client)
        await self._give_notice(client)

    def _make(self) -> Redis | RedisCluster:
        given = self._server()
        if self._options.cluster:
            return self._driver.RedisCluster(**given, max_connections=2 * CONNECTIONS)
        return self._driver.Redis(**given, db=self._address.db)

    def _server(self) -> dict[str, Any]:
        """Return how to connect to the server that the URL names, as arguments for the driver's clients."""
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        address = self._address
        return {
            "host": address.host,
            "port": address.port,
            "username": address.username,
            "password": address.password,
            "socket_timeout": None,  # `Patience` is cheaper than a timer for each read and write
            "socket_connect_timeout": min(CONNECT_WITHIN, self._options.timeout),
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            **({} if address.tls is None else {"ssl": True, **address.tls}),
        }

    async def _check_format(self, client: Any) -> None:
        """Write the format version into a new or older store. Raises `NewerFormat` if a newer Clew made the store, and
        `Corrupt` if the stored version is not a number."""
        found = await client.get(self._layout.format)
        if found is None:
            await client.set(self._layout.format, FORMAT, nx=True)
        elif not found.isdigit():
            raise Corrupt(
                f"{self._layout.format} in {self._address} is not a version. Use another prefix, or restore it."
            )
        elif int(found) > FORMAT:
            raise NewerFormat(f"the store in {self._address}", int(found), FORMAT)
        elif int(found) < FORMAT:  # nothing else is to do: a listing that the store lacks is made when it is first read
            await client.set(self._layout.format, FORMAT)

    async def _give_notice(self, client: Any) -> None:
        """Log a warning for each server setting under which acknowledged writes can be lost. The same warning is logged
        once per process."""
        for settings in await self._settings(client):
            for notice in notices(settings, self._options.ttl is not None):
                if (str(self._address), notice) not in _said:
                    _said.add((str(self._address), notice))
                    log.warning("%s: %s", self._address, notice)

    async def _settings(self, client: Any) -> list[dict[str, str] | None]:
        """Return, for each primary server, a dict of its settings for durability and eviction, or None if the server forbids
        reading them."""
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
        """Return the Clew error for an error of the driver. It says what happened, on which server, and what to do."""
        errors, text = self._errors, _message(error)
        if isinstance(error, errors.MovedError | errors.ClusterCrossSlotError):
            return InvalidInput(f"{self._address} is a server of a cluster. Add cluster=true to the URL.")
        if text.startswith("WRONGTYPE"):
            return Corrupt(
                f"{self._address}: a key of this store holds something else. Restore it, or use another prefix."
            )
        if isinstance(error, errors.AuthenticationError | errors.AuthorizationError):
            hint = "it refuses this user name and password; check them in the URL"
        elif isinstance(error, errors.NoPermissionError):
            hint = f"this user lacks rights that the store needs: all scripting commands and SCAN, on keys {self._keys}"
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


def _pack(commands: Sequence[Command]) -> bytes:
    """Encode commands in Redis's wire format."""
    pieces: list[bytes] = []
    for command in commands:
        parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
        pieces.append(b"*%d\r\n" % len(parts))
        pieces += [b"$%d\r\n%b\r\n" % (len(data), data) for data in parts]
    return b"".join(pieces)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _message(error: Exception) -> str:
    """Return the text of an error without the arguments of the failed command, because these may hold a user's content."""
    text = str(error) or type(error).__name__
    return text.split(", with args beginning")[0].split(" of pipeline caused error")[0].rstrip(". ")[:300]


_FIX = "Run CONFIG SET {} and put the same in its configuration file."


def notices(settings: Mapping[str, str] | None, expiring: bool) -> Iterator[str]:
    """Yield a warning text for each setting of the server under which an acknowledged append can be lost. `settings`
    are the server's settings by name, or None if it forbids reading them: then a warning says that. `expiring` says
    whether threads are deleted after a time without appends (the option `ttl`)."""
    if settings is None or "appendonly" not in settings:
        yield (
            "the server does not show its settings (CONFIG is forbidden), so it is unknown whether acknowledged "
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
