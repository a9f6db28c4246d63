"""The three real coding agents, held to their permissions: what each may write, where, and by which of its tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import open_checkpointer
from clew.providers import Permissions
from clew.testing import ModelServer, Response, call
from tests.e2e.desk import NAMES, Desk
from tests.servers.clis import answering

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.xdist_group("real-clis")]

_HAS_A_SHELL = {("claude_code", "edit"), ("codex", "edit"), *((name, "full") for name in NAMES)}
"""With `edit`, opencode has no shell: nothing would keep its commands in the folder."""


@pytest.mark.parametrize("permissions", ["read", "edit", "full"])
@pytest.mark.parametrize("provider", NAMES)
async def test_permissions_say_what_is_written_inside_and_outside_the_folder_by_tools_and_commands(
    provider: str, permissions: Permissions, tmp_path: Path
) -> None:
    folders = {"inside": tmp_path / "here" / "work", "outside": tmp_path, "temporary": tmp_path / "here" / "tmp"}
    asked = [each for folder in folders.values() for each in (_write(provider, folder), _command(provider, folder))]
    with ModelServer(answering([*asked, "Done."]), strict=False) as server:
        here = Desk(tmp_path, server)
        machine = here.machine()
        async with open_checkpointer(here.url) as store:
            agent = here.agent(machine, provider, store, permissions=permissions)
            assert (await agent.run("Write them")).output == "Done."
    written = {(where, by) for where, folder in folders.items() for by in ("tool", "shell") if (folder / by).exists()}
    allowed = {"read": set[str](), "edit": {"inside"}, "full": set(folders)}[permissions]
    tools = {"tool", "shell"} if (provider, permissions) in _HAS_A_SHELL else {"tool"}
    assert written == {(where, by) for where in allowed for by in tools}


async def test_commands_that_codex_may_run_with_edit_have_a_folder_for_temporary_files(tmp_path: Path) -> None:
    asked = call("exec_command", {"cmd": "cp $(mktemp) made && echo kept > $TMPDIR/kept && cat $TMPDIR/kept"})
    with ModelServer(answering([asked, "Done."]), strict=False) as server:
        here = Desk(tmp_path, server)
        machine = here.machine()
        async with open_checkpointer(here.url) as store:
            turn = await here.agent(machine, "codex", store, permissions="edit").run("Use one")
        assert turn.tool_uses[0].output.strip() == "kept"
        assert (machine.cwd / "made").exists()
        assert not list(Path(machine.env["TMPDIR"]).glob("kept")), "nor is it the one that others use"


def _write(provider: str, folder: Path) -> Response:
    path = folder / "tool"
    if provider == "codex":
        return call("apply_patch", f"*** Begin Patch\n*** Add File: {path}\n+x\n*** End Patch\n")
    if provider == "opencode":
        return call("write", {"filePath": str(path), "content": "x"})
    return call("Write", {"file_path": str(path), "content": "x"})


def _command(provider: str, folder: Path) -> Response:
    command = f"echo x > {folder / 'shell'}"
    if provider == "codex":
        return call("exec_command", {"cmd": command})
    return call("bash" if provider == "opencode" else "Bash", {"command": command, "description": "as asked"})
