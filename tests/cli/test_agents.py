"""Tools and MCP servers, as they are named on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew.cli.agents import check_server, find_tools, open_server
from clew.cli.imports import importing_from
from clew.errors import InvalidInput
from clew.tools import DEFAULT_TOOLS, run_command


def test_a_tool_is_found_by_its_module_and_name_alone_or_in_a_list() -> None:
    assert find_tools("clew.tools:run_command") == [run_command]
    assert find_tools("clew.tools:DEFAULT_TOOLS") == list(DEFAULT_TOOLS)
    assert find_tools("clew.tools.builtin.shell:run_command.fn") == [run_command.fn]


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("run_command", "write module:function"),
        ("tools.py:send", "write module:function"),
        (":send", "write module:function"),
        ("no_such_module:send", "there is no module 'no_such_module', neither in "),
        ("clew.no_such:send", "there is no module 'clew.no_such'"),
        ("clew.tools:no_such", "clew.tools has no 'no_such'"),
        ("broken_tools:send", "broken_tools cannot be imported: ZeroDivisionError: division by zero"),
        ("needy_tools:send", "needy_tools needs the module 'what_it_needs', which is not installed"),
    ],
)
def test_a_tool_that_cannot_be_had_says_why(
    where: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_tools.py").write_text("1 / 0\n")
    (tmp_path / "needy_tools.py").write_text("import what_it_needs\n")
    monkeypatch.setattr("sys.path", [])
    importing_from(str(tmp_path))
    with pytest.raises(InvalidInput) as told:
        find_tools(where)
    assert words in str(told.value)


@pytest.mark.parametrize(
    ("server", "name"),
    [
        ("npx server --token abc", "--token"),
        ("npx server --api-key=abc --verbose", "--api-key"),
        ("npx server --key abc", "--key"),
        ("GITHUB_TOKEN=abc npx server", "GITHUB_TOKEN"),
        ("npx server DB_PASSWORD=abc", "DB_PASSWORD"),
        ("Authorization='Bearer abc' https://example.com/mcp", "Authorization"),
        ("https://ada:abc@example.com/mcp", "password"),
        ("https://example.com/mcp?api_key=abc", "api_key"),
    ],
)
def test_a_secret_that_is_written_out_is_refused_and_not_repeated(server: str, name: str) -> None:
    with pytest.raises(InvalidInput) as told:
        check_server(server)
    assert f"looks like a secret ({name})" in str(told.value)
    assert "abc" not in str(told.value)


@pytest.mark.parametrize(
    "server",
    [
        "npx server --token $TOKEN",
        "TOKEN=${TOKEN} npx server --token-file ~/t --sort-key name --token",
        "Authorization='Bearer $TOKEN' https://example.com/mcp?page=2",
        "https://ada@example.com/mcp?key=$TOKEN",
    ],
)
def test_a_secret_that_the_environment_keeps_is_no_matter(server: str) -> None:
    check_server(server)


@pytest.mark.parametrize(
    ("server", "words"), [("", "takes the URL"), ("A=b", "takes the URL"), ("run 'it", "cannot be read")]
)
def test_what_is_no_server_is_refused(server: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check_server(server)


def test_variables_are_looked_up_when_the_server_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKEN", "abc")
    made = open_server("TOKEN=$TOKEN serve --as ${TOKEN}x '--word=$TOKEN y'", str(tmp_path))
    assert (made._server, made._env, made._cwd) == (
        ["serve", "--as", "abcx", "--word=abc y"],
        {"TOKEN": "abc"},
        str(tmp_path),
    )
    there = open_server("Authorization='Bearer $TOKEN' https://example.com/mcp", "/no/such/folder")
    assert (there._server, there._headers) == ("https://example.com/mcp", {"Authorization": "Bearer abc"})
    monkeypatch.delenv("TOKEN")
    with pytest.raises(InvalidInput, match="the environment variable TOKEN"):
        open_server("serve $TOKEN", str(tmp_path))
