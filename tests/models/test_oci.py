"""OCI's endpoint for models: Oracle's own SDK signs what OpenAI's SDK sends, and a double of the service verifies it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import pytest

from clew.agent import Agent
from clew.errors import ContextTooLong, InvalidInput, ModelRefused, ModelUnavailable
from clew.log import Usage
from clew.messages import Text, ToolResult, plain_text, tool, tool_calls, user
from clew.models import Price, Retrying, TextDelta, cost_of, resolve_model
from clew.models.oci import OCIModel
from clew.testing import Fault, ModelServer, call, reply, say
from tests.models.asking import KEY, ask, events_of, response_of, texts
from tests.models.test_vendors import ADD
from tests.servers.oci_inference import TENANCY, OCIInference, new_key, pem, token_for, write_config
from tests.servers.running import lacking

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning:oci")]

NAME = "oci:openai.gpt-5.5"
COMPARTMENT = "ocid1.compartment.oc1..mine"


@pytest.fixture(autouse=True)
def sdk() -> None:
    if find_spec("oci") is None:
        lacking("no SDK of OCI", install="the extra oci")


class Service:
    """A double of the service before a model server, and a configuration file with a key that it knows."""

    def __init__(self, server: ModelServer, oci: OCIInference, folder: Path) -> None:
        self.server = server
        self.oci = oci
        self.folder = folder
        self.config = write_config(folder, oci)

    def model(self, name: str = NAME, **settings: Any) -> OCIModel:
        if "signer" not in settings and "auth" not in settings:
            settings = {"config_file": str(self.config), **settings}
        model = resolve_model(name, **{"base_url": self.oci.url, **settings})
        assert isinstance(model, OCIModel)
        return model

    async def says(self, **settings: Any) -> str:
        model = self.model(**settings)
        try:
            return plain_text((await response_of(model, ask())).message)
        finally:
            await model.aclose()


@asynccontextmanager
async def service(folder: Path, script: Any = None, **settings: Any) -> AsyncIterator[Service]:
    script = (lambda request: "Hi.") if script is None else script
    async with ModelServer(script, **settings) as server, OCIInference(server.url) as oci:
        yield Service(server, oci, folder)


# A call


async def test_words_and_calls_come_through_a_signed_request(tmp_path: Path) -> None:
    usage = Usage(1000, 200, cache_read_tokens=600, reasoning_tokens=150)
    script = [say("I add.") + call("add", a=1, b=2), reply("It is 3.", usage=usage)]
    async with service(tmp_path, script) as there:
        model = there.model()
        first = await response_of(model, ask("1 + 2?", tools=(ADD,)))
        (made,) = tool_calls(first.message)
        request = ask(
            user("1 + 2?"), first.message, tool(ToolResult(made.id, (Text("3"),))), tools=(ADD,), max_tokens=9
        )
        events = await events_of(model, request)
        await model.aclose()
    assert (made.name, made.arguments) == ("add", {"a": 1, "b": 2})
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["It", " is", " 3."]
    assert events[-1].usage == usage  # type: ignore[union-attr]
    assert there.server.requests[-1].body["max_completion_tokens"] == 9
    assert len(there.oci.seen) == 2
    assert there.oci.refused == []
    assert there.oci.seen[0]["compartmentid"] == there.oci.seen[0]["opc-compartment-id"] == TENANCY


async def test_an_agent_runs_on_it_and_its_cost_is_unknown_until_a_price_is_given(tmp_path: Path) -> None:
    async with service(tmp_path, lambda request: reply("Hi.", usage=Usage(10, 2))) as there:
        model = there.model()
        for prices, is_known in ({}, False), ({"openai.gpt-5.5": Price(5, 30)}, True):
            async with Agent(model, checkpointer=None, prices=prices) as agent:
                assert ((await agent.run("Hi.")).cost is not None) == is_known
        await model.aclose()
    assert cost_of(["gpt-5.5", NAME], Usage(9, 9)) is None  # the table has OpenAI's own prices


async def test_a_limit_is_waited_for_and_each_attempt_is_signed_anew(tmp_path: Path) -> None:
    async with service(tmp_path, faults={1: Fault(status=429, retry_after=0.01), 2: Fault(drop_after=1)}) as there:
        model = there.model()
        events = await events_of(model, ask())
        await model.aclose()
    assert [event.attempt for event in events if isinstance(event, Retrying)] == [2, 3]
    assert texts(events[-3:]) == "Hi."
    assert len(there.oci.seen) == 3


async def test_a_conversation_that_does_not_fit_is_told_apart(tmp_path: Path) -> None:
    async with service(tmp_path, faults=Fault(overflow=True)) as there:
        model = there.model()
        with pytest.raises(ContextTooLong):
            await events_of(model, ask())
        await model.aclose()


async def test_a_model_that_is_not_there_is_told(tmp_path: Path) -> None:
    async with service(tmp_path, faults=Fault(status=404)) as there:
        model = there.model()
        with pytest.raises(ModelRefused, match=r"region.*compartment.*policy"):
            await events_of(model, ask())
        await model.aclose()


# What it is signed with


async def test_a_request_signed_with_another_key_is_refused(tmp_path: Path) -> None:
    async with service(tmp_path) as there:
        (tmp_path / "DEFAULT.pem").write_text(pem(new_key()))
        model = there.model()
        with pytest.raises(ModelRefused, match=r"NotAuthenticated.*the signature does not fit.*Check auth=") as caught:
            await events_of(model, ask())
        await model.aclose()
    assert caught.value.status == 401
    assert there.server.calls == 0


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("x-content-sha256", "AAAA", "the body is not the one that was signed"),
        ("date", "Sun, 06 Nov 1994 08:49:37 GMT", "the date is not now"),
        ("content-type", "text/plain", "the signature does not fit"),
        ("authorization", f"Bearer {KEY}", "the request is not signed"),
    ],
)
async def test_what_was_changed_after_signing_is_refused(tmp_path: Path, name: str, value: str, problem: str) -> None:
    async def change(request: httpx2.Request) -> None:
        request.headers[name] = value

    async with service(tmp_path) as there:
        client = httpx2.AsyncClient(event_hooks={"request": [change]})
        with pytest.raises(ModelRefused, match=problem):
            await there.says(http_client=client)
        await client.aclose()


async def test_a_profile_is_chosen_by_name_and_by_the_variables_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service(tmp_path) as there:
        write_config(tmp_path, there.oci, "WORK", token=token_for())
        assert await there.says(profile="WORK") == "Hi."
        monkeypatch.setenv("OCI_CLI_CONFIG_FILE", str(there.config))
        monkeypatch.setenv("OCI_CLI_PROFILE", "WORK")
        monkeypatch.setenv("OCI_CLI_AUTH", "security_token")
        monkeypatch.setenv("OCI_COMPARTMENT_ID", COMPARTMENT)
        assert await there.says(auth=None) == "Hi."
    first, second = there.oci.seen
    assert 'keyId="ST$' in first["authorization"]
    assert 'keyId="ST$' in second["authorization"]
    assert (first["compartmentid"], second["compartmentid"]) == (TENANCY, COMPARTMENT)


async def test_a_session_that_was_renewed_meanwhile_goes_on_with_the_new_token(tmp_path: Path) -> None:
    async with service(tmp_path) as there:
        write_config(tmp_path, there.oci, "SESSION", token=token_for())
        model = there.model(auth="session", profile="SESSION", config_file=str(there.config))
        await response_of(model, ask())
        there.oci.keys.clear()
        renewed = new_key()
        (tmp_path / "SESSION.pem").write_text(pem(renewed))
        (tmp_path / "SESSION.token").write_text(token_for(number=2))
        there.oci.keys[f"ST${token_for(number=2)}"] = renewed.public_key()
        assert plain_text((await response_of(model, ask())).message) == "Hi."
        await model.aclose()


async def test_a_profile_without_a_session_is_told(tmp_path: Path) -> None:
    async with service(tmp_path) as there:
        with pytest.raises(ModelRefused, match="oci session authenticate"):
            await there.says(auth="session", config_file=str(there.config))


async def test_a_machine_in_oci_signs_with_its_principal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import oci

    async with service(tmp_path) as there:
        endpoint_for = oci.regions.endpoint_for
        monkeypatch.setenv("OCI_METADATA_BASE_URL", f"{there.oci.address}/opc/v2")
        monkeypatch.setattr(
            oci.regions,
            "endpoint_for",
            lambda service, *given, **named: (
                there.oci.address if service == "auth" else endpoint_for(service, *given, **named)
            ),
        )
        assert await there.says(auth="instance") == "Hi."
    assert there.oci.issued == 1
    assert there.oci.seen[0]["compartmentid"] == TENANCY


async def test_a_function_in_oci_signs_with_its_principal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, key = token_for(), new_key()
    for name, value in {"VERSION": "2.2", "RPST": token, "PRIVATE_PEM": pem(key), "REGION": "eu-frankfurt-1"}.items():
        monkeypatch.setenv(f"OCI_RESOURCE_PRINCIPAL_{name}", value)
    async with service(tmp_path) as there:
        there.oci.keys[f"ST${token}"] = key.public_key()
        assert await there.says(auth="resource") == "Hi."
    assert there.oci.seen[0]["compartmentid"] == TENANCY


async def test_a_signer_of_the_sdk_can_be_given(tmp_path: Path) -> None:
    import oci

    async with service(tmp_path) as there:
        signer = oci.Signer.from_config(oci.config.from_file(str(there.config)))
        assert await there.says(signer=signer, compartment_id=COMPARTMENT) == "Hi."
        with pytest.raises(InvalidInput, match="OCI_COMPARTMENT_ID"):
            await there.says(signer=signer)
    assert there.oci.seen[0]["compartmentid"] == COMPARTMENT


@pytest.mark.parametrize("auth", ["config", "resource"])
async def test_without_credentials_the_error_says_which_there_are(auth: str, tmp_path: Path) -> None:
    async with service(tmp_path) as there:
        with pytest.raises(ModelRefused, match="config, session, instance or resource"):
            await there.says(auth=auth, **({"config_file": str(tmp_path / "none")} if auth == "config" else {}))
    assert there.oci.seen == []


class Failing:
    """A signer whose principal cannot be renewed."""

    region = "eu-frankfurt-1"
    tenancy_id = TENANCY

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked = 0

    def __call__(self, request: Any) -> None:
        self.asked += 1
        raise self.error


async def test_a_principal_that_cannot_be_renewed_now_is_tried_again_and_one_that_is_refused_is_not(
    tmp_path: Path,
) -> None:
    import oci

    busy, refused = oci.exceptions.ServiceError(503, "Busy", {}, KEY), oci.exceptions.ServiceError(401, "No", {}, KEY)
    async with service(tmp_path) as there:
        for error in busy, OSError(KEY):
            signer = Failing(error)
            with pytest.raises(ModelUnavailable) as caught:
                await there.says(signer=signer, max_retries=1)
            assert signer.asked == 2
            assert KEY not in str(caught.value)
        for error in refused, ValueError(KEY):
            signer = Failing(error)
            with pytest.raises(ModelRefused) as not_taken:
                await there.says(signer=signer)
            assert (signer.asked, not_taken.value.is_free) == (1, True)
            assert KEY not in str(not_taken.value)
    assert there.server.calls == 0


async def test_what_is_signed_follows_no_redirect(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    async with service(tmp_path) as there, service(tmp_path / "elsewhere") as elsewhere:
        there.oci.redirect = elsewhere.oci.address
        with pytest.raises(ModelRefused, match="Give the final address"):
            await there.says()
    assert (elsewhere.oci.seen, elsewhere.oci.refused) == ([], [])


# Where it goes


async def address_of(**settings: Any) -> httpx2.Request:
    sent: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(401, json={"code": "NotAuthenticated", "message": "no"})

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    with pytest.raises(ModelRefused):
        await response_of(resolve_model(NAME, http_client=client, **settings), ask())
    await client.aclose()
    return sent[0]


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "https://inference.generativeai.eu-frankfurt-1.oci.oraclecloud.com/20231130/actions/v1"),
        (
            {"region": "us-chicago-1"},
            "https://inference.generativeai.us-chicago-1.oci.oraclecloud.com/20231130/actions/v1",
        ),
        (
            {"project": "ocid1.generativeaiproject.oc1..mine"},
            "https://inference.generativeai.eu-frankfurt-1.oci.oraclecloud.com/openai/v1",
        ),
        (
            {"region": "us-langley-1"},
            "https://inference.generativeai.us-langley-1.oci.oraclegovcloud.com/20231130/actions/v1",
        ),
    ],
)
async def test_the_region_and_the_project_say_where_it_goes(settings: dict[str, str], url: str, tmp_path: Path) -> None:
    async with service(tmp_path) as there:
        sent = await address_of(config_file=str(there.config), **settings)
    assert str(sent.url) == f"{url}/chat/completions"
    assert sent.headers.get("openai-project") == settings.get("project")
    assert ("compartmentid" in sent.headers) == ("project" not in settings)


async def test_what_is_meant_for_openai_does_not_go_to_oracle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID"):
        monkeypatch.setenv(f"OPENAI_{name}", "meant-for-openai")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://meant-for-openai.example.com/v1")
    async with service(tmp_path) as there:
        sent = await address_of(config_file=str(there.config))
    assert "meant-for-openai" not in f"{sent.url} {sent.headers.raw!r}"


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"auth": "api_key"}, "config, session, instance, resource"),
        ({"api_key": KEY}, "openai:NAME with base_url="),
        ({"base_url": "http://inference.example.com/v1"}, "https://"),
        ({"signer": "mine"}, "give a signer of the oci SDK"),
        ({"signer": print, "auth": "config"}, "either a signer"),
        ({"client": object(), "profile": "WORK"}, "give these settings to your own client.*profile"),
    ],
)
def test_settings_that_are_wrong_are_told(settings: dict[str, Any], advice: str) -> None:
    with pytest.raises(InvalidInput, match=advice) as caught:
        resolve_model(NAME, **settings)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "limit", "window"),
    [
        ("openai.gpt-5.5", "max_completion_tokens", 1_050_000),
        ("openai.gpt-oss-120b", "max_tokens", None),
        ("xai.grok-4", "max_tokens", None),
    ],
)
async def test_the_limit_has_the_name_that_the_model_knows(
    name: str, limit: str, window: int | None, tmp_path: Path
) -> None:
    async with service(tmp_path) as there:
        model = there.model(f"oci:{name}")
        assert model.context_window == window
        await response_of(model, ask(max_tokens=9))
        await model.aclose()
    assert there.server.requests[0].body[limit] == 9
