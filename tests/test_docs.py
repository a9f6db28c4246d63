"""The guides: every example in them runs, and what they say of the format is what the code writes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from blake3 import blake3

from clew.log import Checkpoint, FoldedState, Usage
from clew.log.entries import KnownEntry
from clew.messages import Block, Message

ROOT = Path(__file__).parent.parent
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_PROGRAMS = {"another-machine.md", "out-of-quota.md", "providers.md"}
"""Their examples need coding agents' programs: tests/e2e/test_provider_guides.py runs them."""
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FORMAT = (ROOT / "docs" / "format.md").read_text()


def examples() -> list[Any]:
    return [
        pytest.param(code, id=f"{guide.name}-{number}")
        for guide in GUIDES
        if guide.name not in WITH_PROGRAMS
        for number, code in enumerate(EXAMPLE.findall(guide.read_text()), start=1)
    ]


@pytest.mark.parametrize("code", examples())
def test_an_example_runs(code: str, tmp_path: Path) -> None:
    if "CheckpointerContract" in code:
        (tmp_path / "test_example.py").write_text(code)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "append", str(tmp_path)]
    else:
        (tmp_path / "example.py").write_text(code)
        command = [sys.executable, "example.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_example_of_the_readme_goes_on_when_it_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(EXAMPLE.findall((ROOT / "README.md").read_text())[1])
    runs = [
        subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True) for _ in range(2)
    ]
    assert [run.stdout.splitlines()[0] for run in runs] == ["turns so far: 0", "turns so far: 1"]


def test_the_agent_of_the_readme_can_be_run_again(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(EXAMPLE.findall((ROOT / "README.md").read_text())[0])
    for turns in (2, 3):
        run = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True)
        assert run.stdout == f"It is sent. {turns} None\n", run.stderr


def test_links_between_guides_lead_somewhere() -> None:
    for guide in GUIDES:
        for target in re.findall(r"\]\(([^)#]+)\)", guide.read_text()):
            assert (guide.parent / target).exists(), f"{guide.name} links to {target}"


@pytest.mark.parametrize("kind", [*get_args(KnownEntry), FoldedState, *get_args(Message), *get_args(Block)])
def test_the_format_page_lists_every_kind_with_its_fields_in_order(kind: Any) -> None:
    fields = ", ".join(f"`{field}`" for field in kind.__struct_fields__)
    assert f"| `{kind.__struct_config__.tag}` | {fields} |" in FORMAT


@pytest.mark.parametrize("kind", [Checkpoint, Usage])
def test_the_format_page_lists_the_fields_of_arrays_in_order(kind: Any) -> None:
    assert ", ".join(f"`{field}`" for field in kind.__struct_fields__) in FORMAT


def test_the_dictionary_is_the_one_that_frames_were_written_with() -> None:
    dictionary = (ROOT / "src" / "clew" / "log" / "dictionary-1.zstd").read_bytes()
    assert blake3(dictionary).hexdigest() in FORMAT
    assert blake3(dictionary).hexdigest() == "7a148d5519f7ac68fc1be0e35c3433362172e66e6a0454643b9cc14bdc7e1664"
