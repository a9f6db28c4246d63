"""The guides: every example in them runs, and what they say of the format is what the code writes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import pytest
from blake3 import blake3

from clew.cli.app import COMMANDS
from clew.compat.importers import KINDS
from clew.log import Checkpoint, FoldedState, Usage
from clew.log.entries import KnownEntry
from clew.messages import Block, Message
from tests.limits import PATIENCE

ROOT = Path(__file__).parent.parent
GUIDES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
WITH_PROGRAMS = {"another-machine.md", "out-of-quota.md", "providers.md"}
"""Their examples need coding agents' programs: tests/e2e/test_provider_guides.py runs them."""
WITH_SERVERS = {"temporal.md"}
"""Their examples need servers: tests/integrations runs them."""
COMING_FROM = ROOT / "docs" / "coming-from"
OF_PROGRAMS = {"caw.md"}
"""Pages whose examples need a coding agent's program. `tests/compat/caw/test_real_programs.py` runs them."""
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FORMAT = (ROOT / "docs" / "format.md").read_text()
FOR_CONTRIBUTORS = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md", ROOT / "RELEASING.md"]
"""Every path in them is one of the repository. Elsewhere, paths may be those of a reader's own project."""
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
WITH_OTHER_NAMES = {"CHANGELOG.md", "observing.md"}
"""One names what was there before, the other spans, which look like modules."""
NOT_MODULES = {"clew.db", "clew.json"}


def examples() -> list[Any]:
    return [
        pytest.param(code, id=f"{guide.name}-{number}")
        for guide in GUIDES
        if guide.name not in WITH_PROGRAMS | WITH_SERVERS
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
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
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


def test_every_number_that_the_readme_compares_was_measured() -> None:
    measured = (ROOT / "docs" / "benchmarks.md").read_text()
    compared = (ROOT / "README.md").read_text().partition("Beside other stores")[2].partition("An empty cell")[0]
    cells = [cell for row in compared.splitlines() if row.startswith("|") for cell in row.split("|")[2:]]
    figures = [figure for cell in cells for figure in re.findall(r"[\d,.]+ ?(?:µs|ms|MB|GB|/s)", cell)]
    assert len(figures) == 16
    assert [figure for figure in figures if f" {figure} |" not in measured] == []


def test_links_between_guides_lead_somewhere() -> None:
    for guide in GUIDES:
        for target in re.findall(r"\]\(([^)#]+)\)", guide.read_text()):
            assert (guide.parent / target).exists(), f"{guide.name} links to {target}"


@pytest.mark.parametrize("page", sorted(path.name for path in COMING_FROM.glob("*.md") if path.name != "index.md"))
def test_a_page_for_users_of_another_system_has_a_table_a_runnable_example_and_a_link(page: str) -> None:
    text = (COMING_FROM / page).read_text()
    assert text.startswith("# Coming from ")
    assert re.search(r"^\|-.*\|$", text, re.MULTILINE)
    assert EXAMPLE.search(text) or page in OF_PROGRAMS
    assert f"]({page})" in (COMING_FROM / "index.md").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_that_can_be_imported_is_described(kind: str) -> None:
    assert f"| `{kind}` |" in (ROOT / "docs" / "moving.md").read_text().partition("## From another system")[2]
    assert f"--from {kind}`" in (COMING_FROM / "index.md").read_text()


def test_every_kind_of_data_in_a_guide_can_be_imported() -> None:
    kinds = set().union(*(named(guide, r"clew import --from ([a-z]+)") for guide in GUIDES))
    assert kinds == set(KINDS)


def named(guide: Path, pattern: str) -> set[str]:
    """Everything in the guide's code, inline or in blocks, that matches the pattern's only group."""
    return {found for code in CODE.findall(guide.read_text()) for found in re.findall(pattern, code, re.MULTILINE)}


def exists(path: str) -> bool:
    """Is this a path from the root or below src/clew, or below a folder of src/clew as in tables of alike folders?"""
    places = [ROOT, ROOT / "src" / "clew", ROOT / "src" / "clew" / "checkpointers", ROOT / "src" / "clew" / "providers"]
    return any((place / path).exists() for place in places)


@pytest.mark.parametrize("guide", [guide for guide in FOR_CONTRIBUTORS if guide.exists()], ids=lambda guide: guide.name)
def test_every_path_that_contributors_are_given_exists(guide: Path) -> None:
    paths = named(guide, r"(?<![\w./:-])((?:[\w.-]+/)+[\w.-]*|\w+\.py)(?![\w*])")
    mirrored = {
        path for path in paths if not path.startswith(("http", ".venv/", "build/", "dist/")) and "yours" not in path
    }
    alike = {path.name for path in (ROOT / "src" / "clew").rglob("*.py")}
    assert [path for path in sorted(mirrored) if not exists(path) and path not in alike] == []


def test_every_function_on_a_walk_is_in_a_module_that_the_walk_has_named() -> None:
    walks = (ROOT / "docs" / "architecture.md").read_text().partition("## Five walks")[2].split("\n### ")[1:]
    assert len(walks) == 5
    missing = []
    for walk in walks:
        defined = {"append"}  # of any store
        for name in re.findall(r"`([\w./]+)`", walk):
            if name.endswith(".py"):
                defined |= definitions(ROOT / "src" / "clew" / name)
            elif ("." in name or name.islower()) and name not in defined:
                missing.append(name)
    assert missing == []


def definitions(module: Path) -> set[str]:
    """The names of a module's functions and methods."""
    tree = ast.parse(module.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    methods = {
        f"{node.name}.{member.name}"
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for member in node.body
        if isinstance(member, kinds)
    }
    return methods | {node.name for node in tree.body if isinstance(node, kinds)}


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_every_command_in_a_guide_exists(guide: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named(guide, r"(?:^|[`$|] ?)make ([a-z]\w*(?:-\w+)*)") <= targets
    assert named(guide, r"(?:^|[`$|] ?)clew ([a-z]+)") <= set(COMMANDS)
    modules = {
        name for name in named(guide, r"python -m ([\w.]+)") if name.partition(".")[0] in ("clew", "tests", "bench")
    }
    assert [name for name in sorted(modules) if find_spec(name) is None] == []


@pytest.mark.parametrize(
    "guide",
    [guide for guide in GUIDES if guide.name not in WITH_OTHER_NAMES],
    ids=lambda guide: guide.name,
)
def test_every_module_and_name_of_clew_in_a_guide_exists(guide: Path) -> None:
    names = named(guide, r"(?<![\w./-])(clew(?:\.[A-Za-z_]\w*)+)(?![\w.]*@)") - NOT_MODULES
    assert [name for name in sorted(names) if not is_known(name)] == []


def is_known(name: str) -> bool:
    """Is there a module of this name, or an attribute in one?"""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


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
