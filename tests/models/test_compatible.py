"""What is particular to Azure, Ollama and OpenRouter: their addresses, keys, errors and costs."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from clew.agent import Agent, Budget
from clew.agent.arguments import window_of
from clew.agent.settings import PriceUnknown
from clew.errors import InvalidInput, ModelRefused, ModelUnavailable
from clew.log import Usage
from clew.messages import plain_text
from clew.models import Price, Retrying, cost_of, resolve_model
from clew.models.compatible import OllamaModel
from clew.testing import Fault, ModelServer
from tests.models.asking import KEY, Wire, ask, events_of, model_at, resolved, response_of, sse
from tests.models.test_openai_chat import DONE, chunk
from tests.servers.running import free_port

pytestmark = pytest.mark.anyio

AZURE = {"azure_endpoint": "https://mine.openai.azure.com", "api_version": "2024-10-21"}
HI = (chunk({"content": "Hi"}), chunk({}, "stop"))
COUNTS = {"prompt_tokens": 100, "completion_tokens": 20}


def settings_of(vendor: str) -> dict[str, Any]:
    return dict(AZURE) if vendor == "azure" else {}


# Nothing that is meant for one vendor goes to another.


@pytest.mark.parametrize("vendor", ["azure", "ollama", "openrouter"])
async def test_what_is_meant_for_openai_goes_to_no_other_vendor(vendor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID"):
        monkeypatch.setenv(f"OPENAI_{name}", "meant-for-openai")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://meant-for-openai.example.com/v1")
    wire = Wire(sse(*HI, DONE))
    await response_of(wire.model(f"{vendor}:scripted", **settings_of(vendor)), ask())
    (request,) = wire.requests
    assert "meant-for-openai" not in f"{request.url} {request.headers.raw!r}"
    assert request.headers["api-key" if vendor == "azure" else "authorization"].endswith(KEY)


@pytest.mark.parametrize("vendor", ["azure", "openrouter"])
async def test_a_key_of_openai_does_not_take_the_place_of_one_that_is_missing(
    vendor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    wire = Wire(sse(*HI, DONE))
    with pytest.raises(ModelRefused, match="no credentials"):
        await response_of(wire.model(f"{vendor}:scripted", api_key=None, **settings_of(vendor)), ask())
    assert wire.requests == []


async def test_ollama_gets_no_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    wire = Wire(sse(*HI, DONE))
    await response_of(wire.model("ollama:scripted", api_key=None), ask())
    assert wire.requests[0].headers["authorization"] == "Bearer ollama-needs-no-key"
    assert str(wire.requests[0].url) == "http://127.0.0.1:11434/v1/chat/completions"


@pytest.fixture
def redirecting() -> Iterator[Callable[[str], str]]:
    """Starts a server that redirects every request to the address it is given, and returns its own."""
    servers: list[HTTPServer] = []

    def start(target: str) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(307)
                self.send_header("location", target + self.path)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
                """Nothing on the terminal."""

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("vendor", ["azure", "ollama", "openrouter"])
async def test_neither_key_nor_conversation_follows_a_redirect(vendor: str, redirecting: Callable[[str], str]) -> None:
    async with ModelServer(["Hi."]) as elsewhere:
        url = redirecting(elsewhere.url)
        settings = {**AZURE, "azure_endpoint": url} if vendor == "azure" else {"base_url": f"{url}/v1"}
        model = resolved(f"{vendor}:scripted", api_key=KEY, **settings)
        with pytest.raises(ModelRefused, match="Give the final address") as caught:
            await response_of(model, ask())
        await model.aclose()
    assert caught.value.status == 307
    assert elsewhere.requests == []


# Azure


async def test_azure_is_asked_for_the_deployment_in_the_version_of_its_api() -> None:
    wire = Wire(sse(chunk(model="", choices=[], prompt_filter_results=[{"prompt_index": 0}]), *HI, DONE))
    model = wire.model("azure:my-deployment", **AZURE)
    response = await response_of(model, ask(max_tokens=9))
    url = "https://mine.openai.azure.com/openai/deployments/my-deployment/chat/completions?api-version=2024-10-21"
    assert str(wire.requests[0].url) == url
    assert wire.requests[0].headers["api-key"] == KEY
    assert wire.bodies[0]["max_completion_tokens"] == 9
    assert response.model == "gpt-5-2025-08-07"  # priced by the model, whatever the deployment is called
    assert cost_of([response.model, model.name], Usage(1_000_000, 0)) == pytest.approx(1.25)


async def blocking() -> str:
    return "token of Entra"


@pytest.mark.parametrize("provider", [lambda: "token of Entra", blocking])
async def test_a_token_of_entra_takes_the_place_of_a_key(provider: Callable[[], str | Awaitable[str]]) -> None:
    async with ModelServer(["Hi.", "Hi."], key="token of Entra") as server:
        settings = {**AZURE, "azure_endpoint": server.url, "azure_ad_token_provider": provider}
        model = resolved("azure:scripted", **settings)
        assert plain_text((await response_of(model, ask())).message) == "Hi."
        await model.aclose()


def no_login() -> str:
    raise RuntimeError("please log in as secret@example.com")


@pytest.mark.parametrize(("provider", "reason"), [(no_login, "raised RuntimeError"), (lambda: "", "no token")])
async def test_without_a_token_of_entra_nothing_is_sent(provider: Callable[[], str], reason: str) -> None:
    wire = Wire(sse(*HI, DONE))
    model = wire.model("azure:scripted", api_key=None, azure_ad_token_provider=provider, **AZURE)
    with pytest.raises(ModelRefused, match=f"{reason}.*AZURE_OPENAI_API_KEY"):
        await response_of(model, ask())
    assert wire.requests == []


async def test_a_wrong_key_of_azure_is_told() -> None:
    async with ModelServer(["Hi."], key="right") as server:
        model = model_at(server, "azure")
        with pytest.raises(ModelRefused, match="AZURE_OPENAI_API_KEY"):
            await response_of(model, ask())
        await model.aclose()


@pytest.mark.parametrize("missing", AZURE)
async def test_an_address_or_version_that_is_missing_is_told(missing: str) -> None:
    settings = {name: value for name, value in AZURE.items() if name != missing}
    variable = "AZURE_OPENAI_ENDPOINT" if missing == "azure_endpoint" else "OPENAI_API_VERSION"
    with pytest.raises(InvalidInput, match=f"{missing}=.*{variable}"):
        await response_of(resolved("azure:scripted", api_key=KEY, **settings), ask())


def test_a_token_provider_is_a_function() -> None:
    with pytest.raises(InvalidInput, match="azure_ad_token_provider"):
        resolve_model("azure:scripted", azure_ad_token_provider="token")


# Ollama


async def test_if_ollama_is_not_running_the_error_says_how_to_start_it() -> None:
    model = resolved("ollama:qwen3:8b", base_url=f"http://127.0.0.1:{free_port()}/v1", max_retries=0)
    with pytest.raises(ModelUnavailable, match=r"connection.*start it: ollama serve"):
        await response_of(model, ask())
    await model.aclose()


async def test_if_a_model_was_not_pulled_the_error_says_how_to_pull_it() -> None:
    said = 'model "qwen3:8b" not found, try pulling it first'
    async with ModelServer(["Hi."], faults=Fault(status=404, message=said)) as server:
        model = model_at(server, "ollama", "qwen3:8b")
        with pytest.raises(ModelRefused, match="ollama pull qwen3:8b fetches it"):
            await response_of(model, ask())
        await model.aclose()
    assert [request.path for request in server.requests] == ["/v1/chat/completions"]  # it pulls nothing


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        (":8080", "http://127.0.0.1:8080/v1"),
        ("gpu.local", "http://gpu.local:11434/v1"),
        (" 'gpu.local:9' ", "http://gpu.local:9/v1"),
        ("[::1]:9", "http://[::1]:9/v1"),
        ("http://gpu.local", "http://gpu.local:80/v1"),
        ("https://gpu.local/ollama/", "https://gpu.local:443/ollama/v1"),
    ],
)
async def test_ollama_is_where_its_own_variable_says(host: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    wire = Wire(sse(*HI, DONE))
    await response_of(wire.model("ollama:scripted"), ask())
    sent = wire.requests[0].url
    assert f"{sent.scheme}://{sent.netloc.decode()}{sent.path}" in (
        f"{url}/chat/completions",
        f"{url.replace(':80/', '/').replace(':443/', '/')}/chat/completions",
    )


async def test_a_host_of_ollama_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "gpu.local:no")
    with pytest.raises(InvalidInput, match="OLLAMA_HOST"):
        await response_of(resolved("ollama:scripted"), ask())


async def test_ollama_is_free_and_counts_under_a_budget_of_dollars() -> None:
    async with ModelServer(["Hi."]) as server:
        model = model_at(server, "ollama", "gpt-5")  # a name of the table of prices changes nothing
        async with Agent(model, checkpointer=None, budget=Budget(usd=0.01)) as agent:
            result = await agent.run("Hi.")
        await model.aclose()
    assert result.cost == 0.0
    assert cost_of("ollama:gpt-5", Usage(9, 9), {"gpt-5": Price(1, 1)}) == pytest.approx(18e-6)
    assert cost_of("ollama:gpt-oss:120b-cloud", Usage(9, 9)) is None


def test_the_window_of_ollama_is_the_one_that_is_given_and_an_agent_compacts_by_it() -> None:
    assert OllamaModel("gpt-5").context_window is None
    assert window_of(OllamaModel("gpt-5", context_window=8192), None, 0.5) == 4096


# OpenRouter


def routed(usage: dict[str, Any]) -> Wire:
    return Wire(sse(*HI, chunk(model="openai/gpt-5", usage={**COUNTS, **usage}), DONE))


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"cost": 0.0123, "cost_details": {"upstream_inference_cost": 0.01}}, 0.0123),
        ({"cost": 0.001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.02}}, 0.021),
        ({"cost": 0}, 0.0),
        ({"cost": 0.001, "is_byok": True}, None),
        ({"cost": "0.1"}, None),
        ({}, None),
    ],
)
async def test_the_cost_is_what_openrouter_says(usage: dict[str, Any], cost: float | None) -> None:
    model = routed(usage).model("openrouter:openai/gpt-5")
    response = await response_of(model, ask())
    assert response.usage == Usage(100, 20)
    assert response.cost == (None if cost is None else pytest.approx(cost))
    assert cost_of([response.model, model.name], response.usage) is None  # it has no prices of Clew's


async def test_what_openrouter_charged_is_what_an_agent_has_spent() -> None:
    model = routed({"cost": 0.0123}).model("openrouter:openai/gpt-5")
    prices = {"openai/gpt-5": Price(1000, 1000)}
    async with Agent(model, checkpointer=None, prices=prices, budget=Budget(usd=1)) as agent:
        assert (await agent.run("Hi.")).cost == pytest.approx(0.0123)


async def test_a_gateway_that_is_not_openrouter_has_the_price_that_the_user_gives() -> None:
    response = await response_of(routed({"cost": 0.0123}).model("openai:gpt-5"), ask())
    assert response.cost is None


@pytest.mark.parametrize("code", [402, 502])
async def test_an_error_of_openrouter_inside_a_stream_has_a_number_for_its_status(code: int) -> None:
    failed = chunk({"content": ""}, "error", error={"code": code, "message": "The vendor failed."})
    wire = Wire(sse(chunk({"content": "H"}), failed), sse(*HI, DONE))
    model = wire.model("openrouter:openai/gpt-5")
    if code == 402:
        with pytest.raises(ModelRefused, match=r"The vendor failed.*credits"):
            await events_of(model, ask())
    else:
        assert isinstance((await events_of(model, ask()))[1], Retrying)


@pytest.mark.parametrize(
    ("name", "window"),
    [("openai/gpt-5", 400_000), ("anthropic/claude-opus-4.7:beta", 1_000_000), ("openai/of-tomorrow", None)],
)
def test_the_window_of_a_routed_model_is_that_of_the_model(name: str, window: int | None) -> None:
    assert resolve_model(f"openrouter:{name}").context_window == window


async def test_a_model_of_unknown_price_is_not_run_under_a_budget_of_dollars() -> None:
    model = resolved("azure:my-deployment", **AZURE)
    with pytest.raises(PriceUnknown):
        Agent(model, checkpointer=None, budget=Budget(usd=1))
