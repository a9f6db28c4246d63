"""Answers one model call of the model server, a test server that imitates the vendors' APIs. Takes the response from
the test's script (the prepared responses), applies the faults that the test asks for, and sends the response in the
vendor's form."""

from __future__ import annotations

import math
import time
import uuid
from typing import Any, Literal, NamedTuple

import msgspec

from clew.errors import ClewError, ContextTooLong, ModelUnavailable
from clew.log import Usage
from clew.models.base import ModelRequest
from clew.testing.model_server.faults import Fault, Faults
from clew.testing.model_server.http import EVENTS, JSON, Abandoned, Connection
from clew.testing.model_server.openai_responses import RESPONSES
from clew.testing.model_server.records import RecordedRequest
from clew.testing.model_server.refusals import refusal
from clew.testing.model_server.scripts import By, Script, turns_in
from clew.testing.model_server.wire import Answer, Body, Event, Problem, Wire
from clew.testing.replies import Reply, estimate, identified, reply_of, say

__all__ = ["CallResponder", "Refused", "read_body"]

_NOT_JSON = '{"type": "broken'
_BODY = msgspec.json.Decoder(dict[str, Any])


class Refused(Exception):
    """Raised when a request must be answered with an error, because the request is wrong or the test's script has no
    response for it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def read_body(body: bytes) -> Body:
    try:
        return _BODY.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Refused(Problem(status=400, message="the body is not a JSON object")) from None


class _Ending(NamedTuple):
    """The outcome that a request will have when its answer has been sent, and the record of the request, where the
    outcome is to be noted. It is noted right before the last bytes are sent, so that a test whose client has the whole
    answer finds the outcome in the record."""

    record: RecordedRequest
    outcome: Literal["answered", "failed"]

    def tell(self) -> None:
        self.record.outcome = self.outcome


class CallResponder:
    """Answers the model calls that come to a model server, from a test's script, which is a list of responses or a
    function. `by` says which response of the list comes next: with "turns", the one whose index is the number of model
    responses in the request's conversation; with "order", the next one for each call that no fault stops. `faults` says
    which calls go wrong, `delay` how many seconds each answer waits, and `usage` which tokens to report.
    `context_window` is the number of tokens above which a request is refused, and `strict` says whether conversations
    that a vendor would refuse are refused."""

    def __init__(
        self,
        script: Script,
        *,
        by: By,
        faults: Faults,
        delay: float,
        usage: Usage | None,
        context_window: int | None,
        strict: bool,
    ) -> None:
        self._script = script
        self._by = by
        self._faults = faults
        self._delay = delay
        self._usage = usage
        self._context_window = context_window
        self._strict = strict
        self._answered = 0
        self._stored: dict[str, list[Any]] = {}
        """Earlier conversations by the id of their last response, as lists of the API's items. A request continues one
        of them by naming this id as `previous_response_id`."""

    async def answer(self, wire: Wire, record: RecordedRequest, connection: Connection, named: Body) -> None:
        """Answer one model call on this connection. `record` is the request, in which the outcome of the call is noted.
        `wire` has the functions that read and write the form of the vendor's API. `named` are fields of the request
        that were in its path and not in its body."""
        try:
            await self._answer(wire, record, connection, named)
        except Refused as refused:
            record.outcome, record.reason = "refused", refused.problem.message
            await _send_problem(wire, refused.problem, connection)
        except (Abandoned, ConnectionError):
            record.outcome = "abandoned"
            raise

    async def _answer(self, wire: Wire, record: RecordedRequest, connection: Connection, named: Body) -> None:
        """Answer one model call on this connection. `record` is the request, in which it is noted how the call ended.
        `wire` has the functions that read and write the form of the vendor's API. `named` are fields of the request
        that were in its path and not in its body. Raises `Refused` for a request that the vendor would refuse, or for
        which the script has no response."""
        body = self._continued(wire, {**(record.body or {}), **named})
        record.request = request = _read(wire, body)
        self._check(wire, request)
        fault = self._faults.take(record.call)
        reply, number = Reply(), self._answered if self._by == "order" else turns_in(request)
        self._answered += fault.answers
        if not fault.stops:
            said = await self._say(request, number)
            if isinstance(said, Fault):
                fault, reply = said, say(said.saying) if said.saying else reply
            else:
                reply = said
        await connection.pause(self._delay + reply.delay + fault.first_byte)
        ending = _Ending(record, "answered" if fault.answers else "failed")
        if fault.reset:
            ending.tell()
            await connection.reset()
        elif fault.stops and fault.problem is not None:
            ending.tell()
            await _send_problem(wire, fault.problem, connection)
        else:
            answer = self._written(wire, reply, request, number, body)
            if fault.answers:
                self._store(wire, answer, body)
            if fault.hang:
                await _send_words(wire, answer, body, fault, connection)
                record.outcome = "hanging"
                await connection.pause(math.inf)
            else:
                await _send(wire, answer, body, fault, connection, ending)

    async def _say(self, request: ModelRequest, number: int) -> Reply | Fault:
        """Return the response number `number`, from 0, of the test's script. If the script is a function, call it with
        the request.

        If the script raises an error that stands for a lost connection, a conversation that is too long, or an outage,
        return the `Fault` that imitates it. For any other error raise `Refused`: the client then gets status 400 and
        does not retry.
        """
        try:
            said = await self._script.response(request, number)
            return said if isinstance(said, Fault) else reply_of(said)
        except (ConnectionError, TimeoutError):
            return Fault(reset=True)
        except Exception as error:  # noqa: BLE001 - whatever the user's script raises
            if isinstance(error, ContextTooLong):
                return Fault(overflow=True)
            if isinstance(error, ModelUnavailable):
                return Fault(status=error.status or 503)
            message = str(error) if isinstance(error, ClewError) else f"the script raised {error!r}"
            raise Refused(Problem(status=400, message=message)) from None

    def _check(self, wire: Wire, request: ModelRequest) -> None:
        name = str(request.options.get("model", ""))
        message = refusal(request.messages, wire.dialect, name) if self._strict else None
        if message is not None:
            raise Refused(Problem(status=400, message=message))
        size = estimate(request.messages, request.system, request.tools, ()).input_tokens
        if self._context_window is not None and size > self._context_window:
            raise Refused(Problem(status=400, overflow=True, window=self._context_window, size=size))

    def _written(self, wire: Wire, reply: Reply, request: ModelRequest, number: int, body: Body) -> Answer:
        content = identified(reply.content, number, wire.call_prefix)
        usage = reply.usage or self._usage or estimate(request.messages, request.system, request.tools, content)
        return Answer(
            id=uuid.uuid4().hex,
            number=number,
            created=int(time.time()),
            model=reply.model or str(body.get("model", "")),
            content=content,
            stop=reply.stop,
            usage=usage,
        )

    def _continued(self, wire: Wire, body: Body) -> Body:
        """Return the body of a request with the whole conversation in it. In OpenAI's Responses API, a request can name
        an earlier response by `previous_response_id`: then the items of the earlier conversation are put before the
        request's own. Any other body is returned as it is. `wire` says which API the request is for. Raises `Refused`
        if the earlier response is not known."""
        name = body.get("previous_response_id")
        if wire is not RESPONSES or name is None:
            return body
        if name not in self._stored:
            raise Refused(Problem(status=400, message=f"Previous response with id '{name}' not found."))
        return {**body, "input": [*self._stored[name], *_items(body)]}

    def _store(self, wire: Wire, answer: Answer, body: Body) -> None:
        if wire is RESPONSES and body.get("store", True):
            whole = wire.whole(answer, body)
            self._stored[whole["id"]] = [*_items(body), *whole["output"]]


def _items(body: Body) -> list[Any]:
    given = body.get("input") or []
    return [{"role": "user", "content": given}] if isinstance(given, str) else list(given)


def _read(wire: Wire, body: Body) -> ModelRequest:
    for key in ("model", *wire.needed):
        if not body.get(key):
            raise Refused(Problem(status=400, message=f"{key}: Field required"))
    try:
        return wire.request(body)
    except ClewError as error:
        raise Refused(Problem(status=400, message=str(error))) from None
    except (TypeError, AttributeError, msgspec.ValidationError):
        raise Refused(
            Problem(status=400, message="the tools or options do not have the form that this API takes")
        ) from None


async def _send_problem(wire: Wire, problem: Problem, connection: Connection) -> None:
    wait = {} if problem.retry_after is None else {"retry-after": f"{problem.retry_after:g}"}
    await connection.send(problem.status, {**JSON, **wait}, msgspec.json.encode(wire.error(problem)))


async def _send(wire: Wire, answer: Answer, body: Body, fault: Fault, connection: Connection, ending: _Ending) -> None:
    if body.get("stream"):
        await _send_events(wire, answer, body, fault, connection, ending)
        return
    ending.tell()
    whole = msgspec.json.encode(wire.whole(answer, body))
    if fault.error_after is not None and fault.problem is not None:
        await _send_problem(wire, fault.problem, connection)
    elif fault.malformed:
        await connection.send(200, JSON, _NOT_JSON.encode())
    else:
        await connection.send(200, JSON, whole, only=None if fault.drop_after is None else len(whole) // 2)


async def _send_words(wire: Wire, answer: Answer, body: Body, fault: Fault, connection: Connection) -> None:
    """Send the first part of a streamed response: all events up to the last one that carries text or arguments. Leave
    the stream open, as if the server hung. Does nothing if `body`, the body of the request, does not ask for a stream.
    `answer` is the response, and `wire` has the functions that write it in the vendor's form. `fault` says how many
    seconds to wait before each event."""
    if not body.get("stream"):
        return
    await connection.start(EVENTS)
    events = wire.events(answer, body)
    while events and not wire.is_delta(events[-1]):
        events.pop()
    for event in events:
        await connection.pause(fault.between)
        await connection.chunk(event.encoded())


async def _send_events(
    wire: Wire, answer: Answer, body: Body, fault: Fault, connection: Connection, ending: _Ending
) -> None:
    await connection.start(EVENTS)
    events = wire.events(answer, body)
    for sent, event in enumerate(events):
        if sent:
            await connection.pause(fault.between)
        if sent == fault.error_after and fault.problem is not None:
            ending.tell()
            await connection.chunk(wire.stream_error(fault.problem, answer, body, sent).encoded())
            break
        if sent == fault.drop_after:
            ending.tell()
            await connection.cut()
            return
        if sent == len(events) - 1:
            ending.tell()
        broken = fault.malformed and sent == 1
        await connection.chunk((Event(event.name, _NOT_JSON) if broken else event).encoded())
    ending.tell()
    await connection.end()
