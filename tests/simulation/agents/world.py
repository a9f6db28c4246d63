"""The world outside: a model and services that the tools call. It sees every request and every act, from any process.

Each response of the model is bought, and has a number of its own. Its calls carry that number in their argument, so
that every call and every act in the world is told from all others. As soon as something begins that must not, or not
yet, or not again, the world notes which promise is broken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import msgspec

from clew import Agent
from clew.agent.prompts import is_prompt
from clew.errors import ModelRefused, ModelUnavailable
from clew.log import StepOutcome, Usage
from clew.messages import Assistant, Block, Message, Text, ToolCall, plain_text
from clew.models import retry
from clew.models.base import ModelEvent, ModelRequest, ModelResponse, TextDelta
from clew.tools import NOT_DONE, AnyTool, NotDone, ToolContext, tool
from tests.simulation.agents.store import Lease, Server
from tests.simulation.loop import Machine, current_machine

__all__ = ["HELPER", "TOOLS", "Act", "Purchase", "World"]

WINDOW = 0.2
"""For how many seconds at most a process works between the moment at which it knows that it has the lease and the
beginning of what it may do then."""
TOOLS = ("look", "put", "trip", "pay", "charge", "send", "mail", "sign", "helper")
HELPER = "helper"
"""The name of the sub-agent."""
WITH_RECONCILE = ("pay", "charge")
ROUNDS = (0.85, 0.6, 0.4)
"""How likely the first responses to a prompt are to call tools. All later ones call none."""


class Act(msgspec.Struct, eq=False):
    """An act of a `once` tool or of a step that cannot be undone."""

    machine: Machine
    time: float
    is_late: bool
    """Whether the process acted after its own lease had run out, inside a body that had begun before. No library can
    prevent that, and the guide says so."""


class Purchase(msgspec.Struct, eq=False):
    """A request to the model. `number` is that of the response; `is_charged` tells whether the vendor charges it."""

    number: int
    thread_id: str
    machine: Machine
    is_charged: bool = True


class World:
    """All that agents do to the world. `hit` is called at each point at which a fault is worth while."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.loop = server.loop
        self.dice = server.dice
        self.hit: Callable[[str], object] = lambda point: None
        self.slowness = 1.0
        self.favourites: list[str] = []
        """The tools that the model calls in this run. Few of them at a time meet each other more often."""
        self.trouble = 0.0
        """The share of model requests and tool calls that fail."""
        self.purchases: list[Purchase] = []
        self.acts: dict[str, list[Act]] = {}
        """For each call, or step of a call, what it did."""
        self.keys: dict[str, str] = {}
        """For each call, or step of a call, its idempotency key."""
        self.values: dict[str, list[Any]] = {}
        """For each step of a call, the values that its runs returned."""
        self.freezes: dict[Machine, list[tuple[float, float]]] = {}
        self.told: dict[Lease, float] = {}
        """For each lease, when its process was told that another one has taken over."""

    # What may begin

    def check_begin(self, thread_id: str, what: str) -> Lease | None:
        """Note a broken promise unless this process may begin an effect on the thread now: it has the lease, by the store
        and by its own clock, or it knew so a moment ago. Returns the lease."""
        machine, now = current_machine(), self.loop.time()
        lease = self.server.leases.get((machine, thread_id))
        if lease is None:
            self.server.breaks(f"{machine} begins {what} on {thread_id}, which it never held")
            return None
        is_held = self.server.records[thread_id].holder is lease and now < lease.until
        just_known = lease.proved >= 0 and self.awake(machine, lease.proved) <= WINDOW
        if not is_held and not just_known:
            holder = self.server.records[thread_id].holder
            self.server.breaks(
                f"{machine} begins {what} on {thread_id} without its lease, which ended at {lease.until:.3f}; "
                f"{holder and holder.machine} has it"
            )
        return lease

    def awake(self, machine: Machine, since: float) -> float:
        """Return for how many seconds this machine has not been frozen since this moment."""
        now = self.loop.time()
        frozen = sum(max(0.0, min(end, now) - max(start, since)) for start, end in self.freezes.get(machine, []))
        return now - since - frozen

    def _call_begins(self, name: str, n: str, ctx: ToolContext) -> Lease | None:
        """Check and note the beginning of a tool's body: its response is on record, and its key is always the same."""
        self.loop.say("%s %s begins, attempt %d", name, n, ctx.attempt)
        record = self.server.records[ctx.thread_id]
        on_record = [call for message in record.fold.present().messages for call in _calls(message)]
        if n not in [call.arguments.get("n") for call in on_record]:
            self.server.breaks(f"{name} {n} begins before the response that calls it is on record")
        if name == "look":  # it changes nothing, so it has neither a key on record nor an intent
            return None
        self._check_key(n, ctx.idempotency_key)
        return self.check_begin(ctx.thread_id, f"{name} {n}")

    def _check_key(self, n: str, key: str) -> None:
        if self.keys.setdefault(n, key) != key:
            self.server.breaks(f"{n} has the idempotency key {key}, and had {self.keys[n]}")

    def _act(self, n: str, lease: Lease | None) -> None:
        self.loop.say("ACTS: %s", n)
        machine, now = current_machine(), self.loop.time()
        if lease is None:
            return
        if lease in self.told and self.awake(machine, self.told[lease]) > WINDOW:
            self.server.breaks(f"{machine} acts for {n}, and knew that it had lost the thread")
        self.acts.setdefault(n, []).append(Act(machine, now, now >= lease.until))

    async def _pause(self) -> None:
        await asyncio.sleep(self.dice.choice((0.0, 0.01, 1.0, 6.0, 25.0)) * self.dice.random() * self.slowness)

    # Tools

    def tools(self) -> list[AnyTool]:
        """Return tools of every effect."""
        return [*self._repeatable(), *self._once()]

    def _repeatable(self) -> list[AnyTool]:
        async def look(n: str, ctx: ToolContext) -> str:
            """Look something up."""
            self._call_begins("look", n, ctx)
            await self._pause()
            return f"did {n}"

        async def put(n: str, ctx: ToolContext) -> str:
            """Put a value, which may be done again with the same key."""
            self._call_begins("put", n, ctx)
            await self._pause()
            if self.dice.random() < self.trouble:
                raise ValueError("the service is busy")
            return f"did {n}"

        async def trip(n: str, ctx: ToolContext) -> str:
            """Book a flight and a hotel, each as a step."""
            self._call_begins("trip", n, ctx)
            self.hit("before a step")
            await self._pause()
            flight = await ctx.step("flight", lambda: self._step(n, "flight", ctx))
            await self._pause()
            self.hit("between steps")
            hotel = await ctx.step(
                "hotel", lambda: self._step(n, "hotel", ctx), reconcile=lambda: self._reconcile_step(n, "hotel", ctx)
            )
            for name, value in (("flight", flight), ("hotel", hotel)):
                if value not in self.values.get(f"{n} {name}", []):
                    self.server.breaks(f"the step {name} of {n} returned {value!r}")
            return f"did {n}"

        return [
            tool(effect="none")(look),
            tool(effect="idempotent", retries=1, timeout=40)(put),
            tool(effect="steps")(trip),
        ]

    async def _step(self, n: str, name: str, ctx: ToolContext) -> str:
        step = f"{n} {name}"
        lease = self.check_begin(ctx.thread_id, f"the step {step}")
        record = self.server.records[ctx.thread_id]
        done = [entry.value for entry in record.entries if isinstance(entry, StepOutcome) and entry.key == name]
        if record.holder is lease and any(value in self.values.get(step, []) for value in done):
            self.server.breaks(f"the step {step} runs again, and its value is on record")
        self._check_key(step, ctx.step_key(name))
        self.hit("in a step")
        await self._pause()
        self._act(step, lease)
        value = f"{step} {len(self.values.get(step, []))}"
        self.values.setdefault(step, []).append(value)
        return value

    async def _reconcile_step(self, n: str, name: str, ctx: ToolContext) -> str | NotDone:
        await self._pause()
        values = self.values.get(f"{n} {name}", [])
        return values[-1] if values else NOT_DONE

    def _once(self) -> list[AnyTool]:
        made: list[AnyTool] = []
        for name, fenced in (("pay", True), ("charge", False), ("send", True), ("mail", False), ("sign", False)):
            options: dict[str, Any] = {"reconcile": self._reconcile} if name in WITH_RECONCILE else {}
            options |= {"in_doubt": "ask"} if name == "sign" else {}
            made.append(tool(name=name, description="Act once.", effect="once", **options)(self._acting(name, fenced)))
        return made

    def _acting(self, name: str, fenced: bool) -> Any:
        async def act(n: str, ctx: ToolContext) -> str:
            lease = self._call_begins(name, n, ctx)
            self.hit("in a tool")
            await self._pause()
            if fenced:
                await ctx.fence()
                self.check_begin(ctx.thread_id, f"the act of {name} {n} behind its fence")
            self.hit("before an act")
            await asyncio.sleep(0)
            self._act(n, lease)
            self.hit("after an act")
            await self._pause()
            return f"did {n}"

        return act

    async def _reconcile(self, ctx: ToolContext, n: str) -> str | NotDone:
        await self._pause()
        self._check_key(n, ctx.idempotency_key)
        self.loop.say("reconcile %s: %s", n, "done" if n in self.acts else "not done")
        return f"did {n}" if n in self.acts else NOT_DONE

    # The model

    def agent(self, **settings: Any) -> Agent:
        """Return an agent with all tools and a sub-agent. Settings are those of `Agent`."""
        helper = Agent(Model(self), name=HELPER, system_prompt="Help.", tools=self.tools(), max_turns=9)
        return Agent(Model(self), name="agent", tools=[*self.tools(), helper], **settings)

    def take_request(self) -> None:
        """Let a request in, or raise `APIError` if the vendor is overloaded."""
        if self.dice.random() < self.trouble:
            after = round(self.dice.choice((1.0, 20.0, 60.0)) * self.dice.random() * self.slowness, 3)
            self.loop.say("overloaded: try again after %.3f s", after)
            self.hit("before a retry")
            raise APIError(after)

    async def respond(self, request: ModelRequest) -> ModelResponse:
        """Sell a response to a request, after a while and if nothing goes wrong."""
        dice, origin = self.dice, plain_text(request.messages[0])
        thread_id = next(
            name for name, record in self.server.records.items() if _origin(record.fold.present().messages) == origin
        )
        bought = Purchase(len(self.purchases), thread_id, current_machine())
        self.purchases.append(bought)
        self.loop.say("request %d for %s, %d messages", bought.number, thread_id, len(request.messages))
        lease = self.check_begin(thread_id, f"request {bought.number}")
        record = self.server.records[thread_id]
        if record.holder is lease and record.fold.present().messages != request.messages:
            self.server.breaks(f"request {bought.number} for {thread_id} differs from what is on record")
        self.hit("in a request")
        failure = dice.choice(("refused", "unavailable")) if dice.random() < self.trouble else ""
        bought.is_charged = failure != "refused"
        await asyncio.sleep(dice.choice((0.01, 1.0, 5.0, 25.0)) * dice.random() * self.slowness)
        if failure == "refused":
            raise ModelRefused("simulated", "too many requests", status=429)
        if failure:
            raise ModelUnavailable("simulated", "an error of the server", attempts=1, status=500)
        names = [spec.name for spec in request.tools]
        content = self._content(request.messages, bought.number, names)
        stop = "tool_use" if len(content) > 1 else "end_turn"
        return ModelResponse(Assistant(content, "simulated", stop), Usage(10, 5), "simulated")

    def _content(self, messages: tuple[Message, ...], number: int, names: list[str]) -> tuple[Block, ...]:
        said = Text(f"response {number}")
        rounds = 0
        for message in reversed(messages):
            if is_prompt(message):
                break
            rounds += type(message) is Assistant
        if rounds >= len(ROUNDS) or self.dice.random() >= ROUNDS[rounds]:
            return (said,)
        calls = []
        for place in range(self.dice.choice((1, 1, 2, 3))):
            name, n = (
                self.dice.choice([name for name in names if name in self.favourites] or names),
                f"{number}.{place}",
            )
            arguments = {"task": f"task {n}"} if name == HELPER else {"n": n}
            calls.append(ToolCall(f"call-{n}", name, arguments))
        return (said, *calls)


class APIError(Exception):
    """The vendor's server is overloaded: it takes no request now, charges nothing, and says when to try again. The name
    is that of the SDKs' errors, by which a call that failed is known."""

    status_code = 429

    def __init__(self, after: float) -> None:
        super().__init__("too many requests")
        self.response = SimpleNamespace(headers={"retry-after": str(after)})


class Model:
    """The model as an agent sees it. A call that fails because the vendor is overloaded is tried again after a pause, as
    the models of Clew do."""

    name = "simulated"
    context_window = None

    def __init__(self, world: World) -> None:
        self._world = world

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        return retry.call(lambda thinking: self._attempt(request), request, model=self.name)

    async def _attempt(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self._world.take_request()
        response = await self._world.respond(request)
        yield TextDelta("response")
        await asyncio.sleep(0)
        yield response


def _calls(message: Message) -> list[ToolCall]:
    return [block for block in message.content if isinstance(block, ToolCall)] if type(message) is Assistant else []


def _origin(messages: tuple[Message, ...]) -> str:
    return plain_text(messages[0]) if messages else ""
