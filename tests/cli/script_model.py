"""Models and providers that an installed package would add, for commands in processes of their own: `script:NAME` answers
from the file NAME.json, and notes each call in NAME.calls, so that tests start without any vendor's SDK."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from clew.models.base import ModelEvent, ModelRequest
from clew.testing import ScriptedModel
from clew.testing.model_server.script_files import read_script

__all__ = ["FOLDER", "ScriptModel", "install"]

FOLDER = "CLEW_TEST_SCRIPTS"
"""The variable of the environment that says where the scripts are."""
_ENTRY_POINTS = """\
[clew.models]
script = tests.cli.script_model:ScriptModel
[clew.providers]
toy = tests.providers.toy:Toy
twin = tests.providers.toy:Twin
"""


def install(folder: Path) -> str:
    """A package for PYTHONPATH that adds them; the variable's value."""
    info = folder / "clew_test_models-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: clew-test-models\nVersion: 1\n")
    (info / "entry_points.txt").write_text(_ENTRY_POINTS)
    return os.pathsep.join([str(Path(__file__).parents[2]), str(folder)])


class ScriptModel(ScriptedModel):
    def __init__(self, name: str, **settings: Any) -> None:
        folder = Path(os.environ[FOLDER])
        self._calls = folder / f"{name}.calls"
        super().__init__(read_script(folder / f"{name}.json").script(), name=f"script:{name}")

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        with self._calls.open("a") as file:
            file.write(f"{len(request.messages)} {' '.join(sorted(tool.name for tool in request.tools))}\n")
        async for event in super().stream(request):
            yield event
