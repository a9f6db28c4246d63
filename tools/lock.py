"""Write requirements-dev.txt: what `make setup` installed, at these versions and with the hashes of their files.

`python tools/lock.py` takes the packages of the dependency group `dev` and of Clew itself, with all that they need, at the
versions that .venv holds. It asks the package index that pip uses for the hashes of all files of these versions, so that
the list serves every platform. The index is not named in it: any index that has the same files will do.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from urllib.request import Request, urlopen

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "requirements-dev.txt"


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    index = index_url()
    lines = ["# Made by `python tools/lock.py`. See CONTRIBUTING.md.\n"]
    for name, version in sorted(closure(wanted).items()):
        digests = sorted(hashes(index, name, version))
        if not digests:
            sys.exit(f"the index has no files of {name} {version}")
        lines.append(
            f"{name}=={version} \\\n" + " \\\n".join(f"    --hash=sha256:{digest}" for digest in digests) + "\n"
        )
    TARGET.write_text("".join(lines))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(wanted: list[str]) -> dict[str, str]:
    """Return the versions of these packages and of all that they need here, by name."""
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(text) for text in wanted]
    while waiting:
        asked = waiting.pop()
        key = normal(asked.name), frozenset(asked.extras)
        if key in seen:
            continue
        seen.add(key)
        package = distribution(asked.name)
        found[key[0]] = package.version
        for text in package.requires or ():
            needed = Requirement(text)
            extras = [{"extra": extra} for extra in ("", *asked.extras)]
            if needed.marker is None or any(needed.marker.evaluate(extra) for extra in extras):
                waiting.append(needed)
    return found


def index_url() -> str:
    said = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    found = os.environ.get("PIP_INDEX_URL") or said.stdout.strip()
    if not found:
        raise SystemExit("Which package index? Set PIP_INDEX_URL to the address of its simple API.")
    return found


def hashes(index: str, name: str, version: str) -> set[str]:
    """Return the SHA-256 digests of all files of a version."""
    accept = {"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.5"}
    with urlopen(Request(f"{index.rstrip('/')}/{name}/", headers=accept)) as answer:
        body, kind = answer.read().decode(), answer.headers.get_content_type()
    if kind.endswith("json"):
        files = [(file["filename"], file["hashes"].get("sha256", "")) for file in json.loads(body)["files"]]
    else:
        files = re.findall(r'href="[^"]*/([^"/#]+)#sha256=([0-9a-f]{64})', body)
    words = "[-_.]+".join(map(re.escape, name.split("-")))
    ours = re.compile(rf"{words}-{re.escape(version)}(-.*\.whl|\.tar\.gz|\.zip)", re.IGNORECASE)
    return {digest for file, digest in files if digest and ours.fullmatch(file.replace("%2B", "+"))}


if __name__ == "__main__":
    main()
