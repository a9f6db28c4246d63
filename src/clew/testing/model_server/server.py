"""`ModelServer`: an HTTP server on 127.0.0.1, for tests, that speaks the vendors' APIs and answers from a script of
prepared responses."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType

from clew.errors import UsageError
from clew.log import Usage
from clew.messages import Assistant
from clew.models.base import ModelRequest
from clew.testing.model_server.calls import CallResponder
from clew.testing.model_server.dispatch import Dispatcher
from clew.testing.model_server.faults import Fault, Faults
from clew.testing.model_server.records import RecordedRequest, Records
from clew.testing.model_server.scripts import By, Script
from clew.testing.replies import Reply, Response

__all__ = ["Fault", "ModelServer", "RecordedRequest", "ServerThread"]


ServerScript = (
    Sequence[Response | Fault]
    | Assistant
    | Reply
    | Callable[[ModelRequest], Response | Fault | Awaitable[Response] | Awaitable[Response | Fault]]
)


class ModelServer:
    """An HTTP server on 127.0.0.1 that speaks Anthropic messages, OpenAI chat completions, OpenAI responses and Gemini.

        async with ModelServer([call("add", a=1, b=2), "It is 3."]) as server:
            client = AsyncAnthropic(base_url=server.anthropic_url, api_key="any")

    The script says what the model answers, as for `ScriptedModel`: a list of responses, or a function of the
    `ModelRequest`, which runs on the server's OS thread. A `Fault` can take the place of a response. The number of
    model responses in a request's conversation is the index of the next response, so that a client that was killed, or
    tries again, gets the right response. With `by="order"`, each call takes the next response of the list, unless a
    fault stops the call. A request past the end of the list, or one that the vendor would refuse, is answered with
    status 400.

    Use the server as a context manager, sync or async. It runs on an OS thread of its own, and works with any client in
    any process, such as the command line of a coding agent that is started with the variables of `env()`. The extra
    `testing` is needed.
    """

    def __init__(
        self,
        script: ServerScript = (),
        *,
        port: int = 0,
        by: By = "turns",
        faults: Fault | Mapping[int, Fault] | None = None,
        key: str | None = None,
        delay: float = 0,
        usage: Usage | None = None,
        context_window: int | None = None,
        models: tuple[str, ...] = ("scripted",),
        strict: bool = True,
        on_request: Callable[[RecordedRequest], None] | None = None,
    ) -> None:
        """Make a server without starting it. `script` says what the model answers: a list of responses, or a function
        of the request. `port`: the port to listen on; 0 is any free port. `by`: which response of the list comes next:
        with `turns`, the one whose index is the number of model responses in the request's conversation; with `order`,
        the next of the list for each call that no fault stops. `faults`: what goes wrong, for all calls or by the
        number of the call, from 1. `key`: the API key that requests must have. `delay`: seconds before each answer.
        `usage`: the tokens to report for responses that name none, instead of an estimate. `context_window`: a request
        with more tokens, by estimate, gets the vendor's error for that. `models`: the names that `GET /v1/models`
        lists; requests for other models are answered too. `strict`: refuse conversations that the vendor would refuse,
        above all a call without its result. `on_request`: a function that is called with each request as it comes, on
        the server's OS thread."""
        self._records = Records(on_request)
        self._faults = Faults(faults)
        responder = CallResponder(
            Script(script),
            by=by,
            faults=self._faults,
            delay=delay,
            usage=usage,
            context_window=context_window,
            strict=strict,
        )
        self._dispatcher = Dispatcher(responder, self._records, key=key, models=models)
        self._port = port
        self._thread: ServerThread | None = None
        self._key = key

    def start(self) -> None:
        """Start the server. A `with` block does this on entry. Raises `UsageError` if the server runs already."""
        if self._thread is not None:
            raise UsageError("this ModelServer is running already; make another one for a second port")
        thread = ServerThread(self._dispatcher.serve, "127.0.0.1", self._port)
        self._port = thread.start()
        self._thread = thread

    def close(self) -> None:
        """Stop the server and close all connections. The recorded requests can still be read."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    @property
    def url(self) -> str:
        if not self._port:
            raise UsageError("this ModelServer has no port yet: use it in a with block, or call start()")
        return f"http://127.0.0.1:{self._port}"

    @property
    def anthropic_url(self) -> str:
        """The base URL for Anthropic's clients."""
        return self.url

    @property
    def openai_url(self) -> str:
        """The base URL for OpenAI's clients."""
        return f"{self.url}/v1"

    @property
    def gemini_url(self) -> str:
        """The base URL for Google's clients."""
        return self.url

    def env(self) -> dict[str, str]:
        """Return environment variables, by name, that make the vendors' clients, and programs that use these clients,
        send their requests to this server."""
        key = self._key or "scripted"
        return {
            "ANTHROPIC_BASE_URL": self.anthropic_url,
            "ANTHROPIC_API_KEY": key,
            "OPENAI_BASE_URL": self.openai_url,
            "OPENAI_API_KEY": key,
            "GOOGLE_GEMINI_BASE_URL": self.gemini_url,
            "GEMINI_API_KEY": key,
        }

    @property
    def requests(self) -> list[RecordedRequest]:
        """All HTTP requests so far in the order of arrival, including those that failed."""
        return list(self._records.requests)

    @property
    def calls(self) -> int:
        """The number of model calls so far, including those that failed."""
        return self._records.calls

    async def wait_for(self, calls: int, timeout: float = 10) -> None:
        """Wait until at least this many model calls have come since the server was started, answered or not. Raises
        `TimeoutError` if they do not come within `timeout` seconds."""
        try:
            await asyncio.wait_for(asyncio.wrap_future(self._records.when(calls)), timeout)
        except TimeoutError:
            raise TimeoutError(self._missing(calls, timeout)) from None

    def wait_for_blocking(self, calls: int, timeout: float = 10) -> None:
        """Block until at least `calls` model calls have come since the server was started, answered or not. Use this in
        code without an event loop, and `wait_for` in async code. Raises `TimeoutError` if they do not come within
        `timeout` seconds."""
        try:
            self._records.when(calls).result(timeout)
        except TimeoutError:
            raise TimeoutError(self._missing(calls, timeout)) from None

    def _missing(self, calls: int, timeout: float) -> str:
        return f"{self.calls} of {calls} model calls came within {timeout:g} s"

    def fail(self, fault: Fault, calls: int | None = 1) -> None:
        """Make the next `calls` model calls go wrong as `fault` says. If `calls` is None, all further calls go wrong,
        except those for which another fault is set."""
        self._faults.add(fault, calls)

    def heal(self) -> None:
        """Remove all faults, so that all further calls are answered normally."""
        self._faults.clear()

    def __enter__(self) -> ModelServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> ModelServer:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class ServerThread:
    """Runs a server on an OS thread and an event loop of its own, from the call of `start` to the call of `stop`. Both
    can be called from any OS thread. `serve` is a function that serves one connection."""

    def __init__(self, serve: Serve, host: str, port: int) -> None:
        self._serve = serve
        self._address = (host, port)
        self._ready: Future[int] = Future()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="clew-model-server", daemon=True)

    def start(self) -> int:
        """Start the server and return the port on which it listens. Raises `OSError` if the port cannot be used."""
        self._thread.start()
        return self._ready.result()

    def stop(self) -> None:
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # raised again in `start`
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connected, *self._address)
        self._ready.set_result(server.sockets[0].getsockname()[1])
        await self._stop.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.sleep(0)  # let asyncio finish the connections that were just closed

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._connection(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        finally:
            writer.close()
