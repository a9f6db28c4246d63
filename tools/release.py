"""`python tools/release.py`: build the sdist and the wheel, check what is in them, and try the wheel on every Python found.

Exits with 1 if anything is wrong, and names each problem. Nothing is published. Needs `build` and `twine`, which are the
dependency group `release`; the steps of a release are in RELEASING.md.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
MINORS = range(11, 16)
"""The versions 3.x to look for, from the oldest that is supported to the newest that there is."""
REQUIRED = ("clew/py.typed", "clew/sync/__init__.pyi", "clew/log/dictionary-1.zstd")
"""Files without which the wheel installs but does not work as promised."""
SMOKE = """
import asyncio, sys
import clew
from clew import Agent, tool
from clew.testing import ScriptedModel, call, turns_in

assert clew.__version__ == sys.argv[1], clew.__version__
assert all(getattr(clew, name) for name in clew.__all__)

@tool
async def send_invoice(order: str) -> str:
    return f"invoice for {order} sent"

async def main() -> None:
    model = ScriptedModel(lambda asked: "Sent." if turns_in(asked) else call("send_invoice", order="A-7"))
    async with Agent(model, tools=[send_invoice], checkpointer="sqlite:///clew.db") as agent:
        result = await agent.run("Send the invoice of order A-7.", thread_id="smoke")
    assert (result.output, result.turns) == ("Sent.", 2), result

asyncio.run(main())
"""
PAGES = """
import asyncio, re, urllib.request
from clew.server import Server, Settings

def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()

async def main() -> None:
    server = Server(Settings(store="sqlite:///clew.db", port=0, access_log=False))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        assert not serving.done(), serving
        await asyncio.sleep(0.01)
    home = f"http://127.0.0.1:{server.port}"
    page = await asyncio.to_thread(get, f"{home}/")
    assert "smoke" in page, page
    for asset in re.findall(r'(?:src|href)="(/[^"]+[.](?:css|js|svg))"', page):
        assert await asyncio.to_thread(get, home + asset), asset
    server.stop()
    await serving

asyncio.run(main())
"""


def main() -> int:
    """Run every step and return the exit code."""
    parser = argparse.ArgumentParser(description="Build and check a release of Clew. Nothing is published.")
    parser.add_argument("--final", action="store_true", help="also require a date in CHANGELOG.md and a clean git tree")
    parser.add_argument("--no-smoke", action="store_true", help="do not install the wheel anywhere")
    given = parser.parse_args()
    problems = list(check_changelog(version(), final=given.final))
    if given.final and output("git", "status", "--porcelain"):
        problems.append("there are changes that are not committed")
    wheel, sdist = build()
    problems += [*check_wheel(wheel), *check_sdist(sdist), *check_metadata(wheel, sdist)]
    if not given.no_smoke:
        problems += smoke_everywhere(wheel)
    for problem in problems:
        print(f"PROBLEM  {problem}")
    print(f"{wheel.name}, {sdist.name}: {f'{len(problems)} problems' if problems else 'all checks passed'}")
    return 1 if problems else 0


def version() -> str:
    """Return the version in the sources."""
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "src/clew/__init__.py").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit("src/clew/__init__.py has no __version__")
    return found[1]


def check_changelog(wanted: str, *, final: bool) -> Iterator[str]:
    """Yield what is wrong with the newest heading of CHANGELOG.md."""
    found = re.search(r"^## (\S+)(?: \((.+)\))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    named, when = (found[1], found[2]) if found else ("nothing", "")
    if named != wanted:
        yield f"the newest heading of CHANGELOG.md names {named}, the sources are {wanted}"
    elif final and not re.fullmatch(r"\d{4}-\d\d-\d\d", when or ""):
        yield f"CHANGELOG.md says {wanted} ({when}): write the date of the release"


def build() -> tuple[Path, Path]:
    """Build the sdist, and the wheel from the sdist, into dist/. Returns both paths, the wheel first."""
    for old in DIST.glob("clew-*"):
        old.unlink()
    run(sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT))
    (wheel,), (sdist,) = DIST.glob("clew-*.whl"), DIST.glob("clew-*.tar.gz")
    print(f"built    {wheel.name} ({wheel.stat().st_size:,} bytes), {sdist.name} ({sdist.stat().st_size:,} bytes)")
    return wheel, sdist


def check_wheel(wheel: Path) -> Iterator[str]:
    """Yield what is wrong in the wheel: it must hold every file of src/clew that git knows, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = {name for name in names if ".dist-info/" not in name}
    known = {name.removeprefix("src/") for name in output("git", "ls-files", "src/clew").splitlines()}
    yield from (f"{name} is missing in the wheel" for name in sorted((known | set(REQUIRED)) - package))
    yield from (f"{name} should not be in the wheel" for name in sorted(package - known))
    if not any(name.endswith("/licenses/LICENSE") for name in names):
        yield "the wheel has no LICENSE"


def check_sdist(sdist: Path) -> Iterator[str]:
    """Yield what is wrong in the sdist: it must hold what is needed to build and test, and nothing git does not know."""
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    known = {*output("git", "ls-files").splitlines(), "PKG-INFO"}
    yield from (f"{name} should not be in the sdist" for name in sorted(names - known))
    needed = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "src/clew/py.typed", "tests/conftest.py"}
    yield from (f"{name} is missing in the sdist" for name in sorted(needed - names))


def check_metadata(*files: Path) -> Iterator[str]:
    """Yield what twine finds wrong."""
    said = attempt(sys.executable, "-m", "twine", "check", "--strict", *map(str, files))
    if said:
        yield f"twine check: {said}"


def smoke_everywhere(wheel: Path) -> list[str]:
    """Install and try the wheel on every Python found, print those not found, and return the problems."""
    problems, absent = [], []
    for minor in MINORS:
        python = find_python(minor)
        if python is None:
            absent.append(f"3.{minor}")
            continue
        problem = smoke(python, wheel)
        print(f"smoke    Python 3.{minor} ({python}): {problem or 'ok'}", flush=True)
        problems += [f"on Python 3.{minor}: {problem}"] if problem else []
    if absent:
        print(f"not here Python {', '.join(absent)}: not tried")
    return problems if len(absent) < len(MINORS) else ["no Python was found to try the wheel on"]


def find_python(minor: int) -> Path | None:
    """Find a working Python 3.x: this one, on the PATH, or among those that pyenv or uv have installed."""
    return next((python for python in candidates(minor) if is_python(python, minor)), None)


def candidates(minor: int) -> Iterator[Path]:
    yield Path(sys.base_prefix) / "bin" / f"python3.{minor}"
    if found := shutil.which(f"python3.{minor}"):
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from newest_first((pyenv / "versions").glob(f"3.{minor}.*/bin/python3.{minor}"))
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or Path.home() / ".local/share/uv/python")
    yield from newest_first(uv.glob(f"cpython-3.{minor}.*/bin/python3.{minor}"))


def newest_first(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: [int(part) for part in re.findall(r"\d+", str(path))], reverse=True)


def is_python(python: Path, minor: int) -> bool:
    """Say whether this runs and is the version asked for. A shim of pyenv can be there and not run."""
    if not python.exists():
        return False
    asked = [str(python), "-c", "import sys, venv, ensurepip; print(sys.version_info[1])"]
    said = subprocess.run(asked, capture_output=True, text=True)
    return said.returncode == 0 and said.stdout.strip() == str(minor)


def smoke(python: Path, wheel: Path) -> str:
    """Install the wheel into a fresh environment and use it. Returns what went wrong; empty if nothing did."""
    with tempfile.TemporaryDirectory(prefix="clew-release-") as folder:
        home = Path(folder) / "env"
        fresh, clew = str(home / "bin" / "python"), str(home / "bin" / "clew")
        pip = (fresh, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        steps = (
            (str(python), "-m", "venv", str(home)),
            (*pip, str(wheel)),
            (fresh, "-W", "error", "-c", SMOKE, version()),
            (clew, "--help"),
            (clew, "ls", "--store", "sqlite:///clew.db"),
            (clew, "show", "smoke", "--store", "sqlite:///clew.db"),
            (clew, "demo"),
            (*pip, f"{wheel}[server]"),
            (fresh, "-c", PAGES),
            (fresh, "-m", "pip", "check"),
        )
        return next((problem for step in steps if (problem := attempt(*step, folder=folder))), "")


def attempt(*command: str, folder: str | None = None) -> str:
    """Run a command away from the sources. Returns the end of what it said if it failed, else nothing."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CLEW_", "VIRTUAL_ENV"))}
    try:
        done = subprocess.run(
            command, cwd=folder or ROOT, env=env, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"{' '.join(command[:4])[:200]} … took longer than five minutes"
    shown = " ".join(word if len(word) < 80 else "…" for word in command)
    return f"{shown}: {(done.stderr or done.stdout).strip()[-600:]}" if done.returncode else ""


def run(*command: str) -> None:
    if problem := attempt(*command):
        raise SystemExit(problem)


def output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
