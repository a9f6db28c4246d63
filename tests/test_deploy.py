"""The units and manifests in `deploy/`: they parse, and what they call exists."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.cli.command_line import clew
from tests.servers.running import lacking

ROOT = Path(__file__).parents[1]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
KINDS = {"Deployment": "apps/v1", "Service": "v1"}


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        lacking("systemd-analyze checks units", install="systemd")
    instance = tmp_path / unit.name.replace("@.", "@1.")
    instance.write_text(unit.read_text())
    done = subprocess.run([verify, "verify", str(instance)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def _documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_parses_and_its_parts_fit_together(manifest: Path) -> None:
    for document in _documents(manifest):
        assert document["apiVersion"] == KINDS[document["kind"]]
        assert document["metadata"]["name"]
        if document["kind"] != "Deployment":
            continue
        spec = document["spec"]
        pod = spec["template"]["spec"]
        assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            ports = {port["name"] for port in container["ports"]}
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            for probe in ("livenessProbe", "readinessProbe"):
                assert container[probe]["httpGet"]["port"] in ports


def _called() -> list[list[str]]:
    """Return each command of Clew that a unit or a manifest starts, with its arguments."""
    texts = [unit.read_text() for unit in UNITS]
    found = [shlex.split(line) for text in texts for line in re.findall(r"^ExecStart=.* (clew .*)$", text, re.M)]
    for manifest in MANIFESTS:
        for document in _documents(manifest):
            for container in document["spec"].get("template", {}).get("spec", {}).get("containers", []):
                found.append([*container["command"], *container["args"]])
    return found


def test_each_command_and_option_that_is_called_exists() -> None:
    called = _called()
    assert len(called) == len(UNITS) + len(MANIFESTS)
    for _, command, *arguments in called:
        told = clew(command, "--help").stdout
        options = {argument for argument in arguments if argument.startswith("--")}
        assert {option for option in options if option not in told} == set()
