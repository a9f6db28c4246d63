"""`clew files`."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Thread, Workspace, open_checkpointer
from clew.log import StatusChanged
from tests.cli.command_line import Samples, clew, objects, terminal

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    return Samples(tmp_path)


def test_files_are_listed_as_of_any_turn(samples: Samples) -> None:
    run = samples.clew("files", "trip")
    assert run.stdout.splitlines()[1].split()[:3] == ["plan.md", "35", "B"]
    assert run.stderr == "1 file, 35 B\n"
    (then,) = objects(samples.clew("files", "trip", "--turn", "2", "--json"))
    assert (then["path"], then["what"], then["size"], then["mode"]) == ("plan.md", "file", 22, "0644")
    assert objects(samples.clew("files", "trip", "--turn", "1", "--json")) == []


async def test_a_tree_shows_folders_links_and_programs(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path / 'clew.db'}", tmp_path / "work"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "src" / "run.sh").chmod(0o755)
    (folder / "latest").symlink_to("src/run.sh")
    async with open_checkpointer(url) as store, Thread.open(store, "tree") as thread:
        await thread.append((await Workspace(folder, store).snapshot()).entry(), StatusChanged("done"))
    names = [
        line.split("  ")[0] if not line.startswith(" ") else line[:9]
        for line in clew("files", "tree", store=url).stdout.splitlines()
    ]
    assert names[1:] == ["latest -> src/run.sh", "src/", "  run.sh*"]
    linked = {one["path"]: one for one in objects(clew("files", "tree", "--json", store=url))}
    assert linked["latest"]["target"] == "src/run.sh"
    assert linked["src/run.sh"]["mode"] == "0755"


def test_a_copy_goes_into_a_new_folder_and_the_workspace_stays(samples: Samples, tmp_path: Path) -> None:
    out = tmp_path / "then"
    run = samples.clew("files", "trip", "--turn", "2", "--out", str(out), env={"CLEW_CACHE": str(tmp_path / "cache")})
    assert (run.returncode, run.stdout) == (0, f"1 file copied to {out}\n")
    assert (out / "plan.md").read_text() == "# Paris\n\n1. The river\n"
    assert "The tower" in (samples.files / "plan.md").read_text()


def test_a_folder_that_holds_something_is_left_alone_unless_told(samples: Samples, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    refused = samples.clew("files", "trip", "--out", str(out))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--yes" in refused.stderr
    with terminal("files", "trip", "--out", str(out), store=samples.url) as shell:
        shell.wait_for("[y/N]")
        shell.type("n\n")
        assert shell.end() == 1
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    (done,) = objects(
        samples.clew("files", "trip", "--out", str(out), "--yes", "--json", env={"CLEW_CACHE": str(tmp_path / "cache")})
    )
    assert [path.name for path in out.iterdir()] == ["plan.md"]
    assert (done["files"], len(done["before"])) == (1, 64)


def test_threads_without_files_and_places_that_are_no_folder_are_2(samples: Samples, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arguments, named in (
        (["report"], "no files on record"),
        (["trip", "--turn", "0"], "as of turn 0"),
        (["trip", "--turn", "9"], "turns 0 to 5"),
        (["trip", "--out", str(tmp_path / "file")], "is not a folder"),
    ):
        run = samples.clew("files", *arguments)
        assert (run.returncode, run.stdout) == (2, ""), arguments
        assert named in run.stderr
