"""`python -m clew.testing.model_server`: scripts in files, for other processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from clew.errors import InvalidInput
from clew.log import Usage
from clew.testing.model_server.script_files import read_script
from tests.limits import PATIENCE

COMMAND = [sys.executable, "-m", "clew.testing.model_server"]


@contextmanager
def serving(tmp_path: Path, script: Any, *options: str) -> Iterator[tuple[openai.OpenAI, subprocess.Popen[str]]]:
    """A server in a process of its own, and a client of it."""
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script))
    with subprocess.Popen([*COMMAND, str(path), *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with openai.OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0) as client:
                yield client, process
        finally:
            process.kill()


def test_the_url_is_printed_and_the_script_served_until_the_server_is_told_to_end(tmp_path: Path) -> None:
    script = [{"think": "So.", "say": "Let me see.", "calls": [{"name": "add", "arguments": {"a": 1}}]}, "It is 1."]
    log = tmp_path / "requests.jsonl"
    with serving(tmp_path, script, "--log", str(log)) as (client, process):
        first = client.responses.create(model="m", input="Hi")
        assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
        result: Any = [{"type": "function_call_output", "call_id": "call_1_1", "output": "1"}]
        assert client.responses.create(model="m", input=result, previous_response_id=first.id).output_text == "It is 1."
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["call"], line["path"]) for line in lines] == [(1, "/v1/responses"), (2, "/v1/responses")]
    assert lines[0]["body"] == {"model": "m", "input": "Hi"}
    assert "secret" not in log.read_text()


def test_a_server_that_was_killed_goes_on_with_the_same_script(tmp_path: Path) -> None:
    script = ["One.", "Two."]
    with serving(tmp_path, script) as (client, _):
        assert client.responses.create(model="m", input="Hi").output_text == "One."
    said: Any = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "One."},
        {"role": "user", "content": "And?"},
    ]
    with serving(tmp_path, script) as (client, _):
        assert client.responses.create(model="m", input=said).output_text == "Two."


def test_a_file_may_say_more_than_responses(tmp_path: Path) -> None:
    script = {
        "responses": [{"say": "Hello.", "usage": {"input_tokens": 7}, "stop": "length"}],
        "rules": [{"model": "small*", "responses": ["A title."]}, {"contains": "secret word", "responses": ["Found."]}],
        "faults": {"1": {"status": 503}},
        "key": "secret",
        "models": ["small-1"],
    }
    with serving(tmp_path, script) as (client, _):
        with pytest.raises(openai.InternalServerError):
            client.responses.create(model="m", input="Hi")
        response = client.responses.create(model="m", input="Hi")
        assert (response.output_text, response.status) == ("Hello.", "incomplete")
        assert response.usage is not None
        assert response.usage.input_tokens == 7
        assert client.responses.create(model="small-1", input="Hi").output_text == "A title."
        assert client.responses.create(model="m", input="Hi", instructions="The secret word.").output_text == "Found."
        assert [model.id for model in client.models.list()] == ["small-1"]
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").responses.create(model="m", input="Hi")


def test_a_rule_can_repeat_its_last_response(tmp_path: Path) -> None:
    script = {"rules": [{"responses": ["Again."], "repeat": True}]}
    said: Any = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant", "user")]
    with serving(tmp_path, script) as (client, _):
        assert client.responses.create(model="m", input=said).output_text == "Again."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not a script"),
        ("5", "is not a script"),
        ('[{"sya": "Hello."}]', "unknown field `sya`"),
        ('{"responses": ["a"], "by": "chance"}', "is not a script"),
    ],
)
def test_a_file_that_is_no_script_is_said_to_be_none(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "script.json"
    path.write_text(text)
    run = subprocess.run([*COMMAND, str(path)], capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 2
    assert words in run.stderr
    with pytest.raises(InvalidInput):
        read_script(tmp_path / "missing.json")


def test_a_fault_and_a_vendors_own_block_can_be_written_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    block = {"dialect": "openai-responses", "value": {"type": "web_search_call"}}
    usage = {"cache_read_tokens": 3}
    path.write_text(json.dumps([{"fault": {"reset": True}}, {"opaque": block, "usage": usage}]))
    fault, said = read_script(path).script()
    assert fault.reset
    assert said.content[0].value == {"type": "web_search_call"}
    assert said.usage == Usage(cache_read_tokens=3)


def test_the_tools_for_tests_need_no_pytest_and_bring_no_vendor() -> None:
    code = (
        "import sys; import clew.testing; clew.testing.ModelServer; clew.testing.ScriptedModel; "
        "print([name for name in ('pytest', 'openai', 'anthropic', 'httpx') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
