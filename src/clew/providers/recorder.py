"""Records in a thread what a provider's program does while it happens: text before the response is complete, and tool
calls before their results."""

from __future__ import annotations

import asyncio

from clew.agent.events import Event, Retrying, TextDelta, ThinkingDelta, ToolFinished, ToolStarted
from clew.agent.journal import Journal
from clew.agent.run import Emit
from clew.log import MessageAdded, Streamed, ToolIntent, ToolOutcome
from clew.messages import Assistant, Block, Message, Text, Thinking, Tool, ToolCall, ToolResult, tool_calls, user
from clew.providers.events import Delta, Failed, Finished, ProviderEvent, Response, Result, Retry

__all__ = ["Recorder"]


class Recorder:
    """Writes the events of one prompt to the thread's log and passes them to the caller's function `emit`.

    Events become durable a moment after they were recorded: the program does not wait until its events are on disk, so
    the recorder does not either. Those that arrive during a write are written together by the next write.
    """

    def __init__(self, journal: Journal, emit: Emit, *, pieces: bool = True) -> None:
        """`journal` writes to the thread's log, and `emit` passes an event to the caller. With `pieces=False` only
        complete blocks are recorded, not the pieces of text in which a response is streamed. This is for threads from
        which secrets are removed: a secret could be split over two pieces."""
        self._pieces = pieces
        self._journal = journal
        self._thread = journal.thread
        self._emit = emit
        self._id = ""
        self._model = ""
        self._blocks: list[Block] = []
        self._said = ""
        self._thought = ""
        """The thinking that was streamed since the last complete thinking block. It is the beginning of the next one.
        """
        self._calls: dict[str, tuple[int, int, ToolCall]] = {}
        """The recorded tool calls without a result, by the vendor's call id: index of the message in the thread, index
        of the call in the message, and the call."""
        self._whole: list[Assistant] = []
        """Complete responses that are not yet added to the thread, because tool calls of the response before them have
        no result yet."""
        self._early: dict[str, ToolResult] = {}
        """Results of tool calls in responses that are not yet added to the thread, by the vendor's call id. They are
        recorded once the response is added."""
        self._retries = 1
        self.may_be_charged = False
        """Whether the program repeated a request that had failed without being refused by the vendor. The vendor may
        have charged for the failed request, although its tokens were not counted."""
        self._writing: asyncio.Task[None] | None = None
        self._dirty = False
        self.children: dict[str, list[Message]] = {}
        """What was said with each sub-agent, by the id of the tool call that started it."""
        self.ending: Finished | Failed | None = None
        self.model = ""

    def take(self, event: ProviderEvent) -> None:
        """Record one event, and pass it on to the caller. Raises `LeaseLost` if another process has taken the thread."""
        if isinstance(event, Delta):
            self._delta(event)
        elif isinstance(event, Response):
            self._response(event)
        elif isinstance(event, Result):
            self._result(event)
        elif isinstance(event, Retry):
            self._retries += 1
            self.may_be_charged = self.may_be_charged or not event.is_refused
            self._emit(Retrying(self._retries, event.seconds, event.reason))
        elif isinstance(event, Finished | Failed):
            self._close()
            if isinstance(event, Finished):
                self._calls.clear()  # a call without a result by now will get none
                self._add_whole()
            self.ending = self.ending or event

    async def settle(self) -> None:
        """Add the current response to the thread, and wait until everything recorded is durable."""
        self._close()
        if self._writing is not None:
            await self._writing
        await self._journal.flush()

    def _delta(self, delta: Delta) -> None:
        block = Thinking(delta.text) if delta.thinking else Text(delta.text)
        self._stream(Streamed((block,), delta.child))
        if delta.child:
            return
        if delta.thinking:
            self._thought += delta.text
            self._emit(ThinkingDelta(delta.text))
        else:
            self._said += delta.text
            self._emit(TextDelta(delta.text))

    def _response(self, response: Response) -> None:
        if response.child:
            self._stream(Streamed(response.blocks, response.child))
            self._child(response.child).append(Assistant(response.blocks, response.model))
            return
        if response.id != self._id or not response.id:
            self._close()
        self._id, self._model = response.id, response.model or self._model
        self.model = self._model
        self._blocks += response.blocks
        for block in response.blocks:
            self._tell(block)

    def _tell(self, block: Block) -> None:
        """Record a block of a response, now that it is complete, and emit the event for it if its kind has one. Of a
        text, or of thinking, only what was not streamed before is recorded and emitted."""
        event: Event | None = None
        if isinstance(block, Text):
            known, self._said = self._said, ""
            event = None if block.text == known else TextDelta(block.text.removeprefix(known))
        elif isinstance(block, Thinking):
            known, self._thought = self._thought, ""
            event = None if block.text == known else ThinkingDelta(block.text.removeprefix(known))
        elif isinstance(block, ToolCall):
            event = ToolStarted(block.name, block.id, block.arguments)
        if isinstance(event, TextDelta):
            self._stream(Streamed((Text(event.text),)))
        elif isinstance(event, ThinkingDelta):
            self._stream(Streamed((Thinking(event.text),)))
        elif not isinstance(block, Text | Thinking):
            self._keep(Streamed((block,)))  # recorded in any case: it is complete, and a call may begin at once
        if event is not None:
            self._emit(event)

    def _close(self) -> None:
        """End the current response: it becomes a message of the thread, in place of the pieces in which it was
        streamed. Its tool calls are recorded as begun, since the program may have begun them already."""
        if self._blocks:
            self._whole.append(Assistant(tuple(self._blocks), self._model))
            self._blocks, self._id, self._said, self._thought = [], "", "", ""
        self._add_whole()

    def _add_whole(self) -> None:
        """Add the complete responses to the thread, in order. A response has to wait while tool calls of the one before
        it have no result: in a thread only the last response can have open calls, so a result for an earlier one would
        be lost. The streamed pieces of a waiting response are already on record."""
        while self._whole and not self._calls:
            message = self._whole.pop(0)
            self._keep(MessageAdded(message))
            place = self._thread.messages - 1
            calls = tool_calls(message)
            self._calls |= {call.id: (place, index, call) for index, call in enumerate(calls)}
            if calls:
                self._keep(*(ToolIntent(place, index) for index in range(len(calls))))
            if waiting := self._waiting_blocks():
                self._keep(Streamed(waiting))
            for call in calls:
                if early := self._early.pop(call.id, None):
                    self._settle_call(early)

    def _waiting_blocks(self) -> tuple[Block, ...]:
        """Return the blocks that were received but are not yet in a message of the thread; only the tool calls among
        them if this recorder was made with `pieces=False`, which forbids recording parts of a response."""
        blocks = [*(block for message in self._whole for block in message.content), *self._blocks]
        return tuple(block for block in blocks if self._pieces or isinstance(block, ToolCall))

    def _result(self, event: Result) -> None:
        result = event.result
        if event.child:
            self._stream(Streamed((result,), event.child))
            self._child(event.child).append(Tool((result,)))
            return
        if result.call_id not in self._calls:
            self._close()
        waiting = {call.id: call for message in self._whole for call in tool_calls(message)}
        if result.call_id in self._calls:
            call = self._settle_call(result)
            self._add_whole()
        elif result.call_id in waiting:
            call = waiting[result.call_id]
            self._early[call.id] = result
        else:
            self._keep(MessageAdded(Tool((result,))))
            return
        self._emit(ToolFinished(call.name, call.id, result))

    def _settle_call(self, result: ToolResult) -> ToolCall:
        place, index, call = self._calls.pop(result.call_id)
        self._keep(ToolOutcome(place, index, result))
        return call

    def _child(self, call_id: str) -> list[Message]:
        """Return the list of messages of a sub-agent, to which the caller appends. `call_id` is the id of the tool call
        that started the sub-agent. A new list begins with the prompt in the arguments of that call."""
        if call_id not in self.children:
            self._close()
            call = self._calls[call_id][2] if call_id in self._calls else None
            asked = call.arguments.get("prompt") if call is not None and isinstance(call.arguments, dict) else None
            self.children[call_id] = [user(asked if isinstance(asked, str) and asked else "(its task is not known)")]
        return self.children[call_id]

    def _stream(self, piece: Streamed) -> None:
        if self._pieces:
            self._keep(piece)

    def _keep(self, *entries: Streamed | MessageAdded | ToolIntent | ToolOutcome) -> None:
        self._journal.hold(*entries)
        self._dirty = True
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        while self._dirty:
            self._dirty = False
            await self._journal.write()
        self._writing = None
