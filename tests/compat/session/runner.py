"""An agent's loop as users of run checkpoints write it: over Anthropic's SDK, with a save after each iteration.

python -m tests.compat.session.runner FOLDER RUN_ID [--json] [--kill-at N]
"""

from __future__ import annotations

import argparse
import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anthropic import Anthropic

from clew.compat.session import Checkpoint, Store

__all__ = ["work"]

COUNT: Any = {
    "name": "count",
    "description": "Count one further.",
    "input_schema": {"type": "object", "properties": {"number": {"type": "integer"}}},
}


def work(store: Store, run_id: str, counted: Path, kill_at: int = 0) -> str:
    """Go on with the run from its checkpoint, or begin it. Each call of the tool writes a line to the file `counted`."""
    if store.has_checkpoint(run_id):
        run = store.load(run_id)
    else:
        first = {"role": "user", "content": "Count."}
        run = Checkpoint(run_id, task_name="count", messages=[first], system_prompt="You count.")
    print(f"from iteration {run.iteration}", flush=True)
    with Anthropic(max_retries=0) as client:
        while True:
            response = client.messages.create(
                model="claude-opus-4-7", max_tokens=100, system=run.system_prompt, messages=run.messages, tools=[COUNT]
            )
            run.messages.append({"role": "assistant", "content": response.content})
            run.input_tokens += response.usage.input_tokens
            run.output_tokens += response.usage.output_tokens
            calls: list[Any] = [block for block in response.content if block.type == "tool_use"]
            if not calls:
                store.delete(run_id)
                return "".join(block.text for block in response.content if block.type == "text")
            results = []
            for call in calls:
                with counted.open("a") as file:
                    file.write(f"{call.input['number']}\n")
                results.append({"type": "tool_result", "tool_use_id": call.id, "content": "counted"})
            run.messages.append({"role": "user", "content": results})
            run.iteration += 1
            run.created_at = datetime.now(UTC)
            store.save(run)
            if run.iteration == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("run_id")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kill-at", type=int, default=0)
    given = parser.parse_args()
    with Store(given.folder, json_files=given.json) as runs:
        print(work(runs, given.run_id, given.folder / "counted", given.kill_at))
