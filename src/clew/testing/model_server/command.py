"""The command `python -m clew.testing.model_server script.json`: runs a model server, which other processes can use.
The JSON file is the server's script, which says what the model answers."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from pathlib import Path

from clew.errors import ClewError
from clew.testing.model_server.records import RecordedRequest
from clew.testing.model_server.script_files import ScriptFile, read_script

__all__ = ["main"]

_EXAMPLE = """\
A script is a list of responses, or an object with "responses" and more:

  ["Hello."]
  [{"say": "Let me see.", "call": {"name": "add", "arguments": {"a": 1}}}, "It is 1."]
  {"responses": ["Hello."], "faults": {"1": {"status": 429, "retry_after": 0}}, "key": "secret"}

The first line of the output is the URL. Ends with SIGTERM or Ctrl+C.
"""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m clew.testing.model_server",
        description="Serve scripted answers in the words of Anthropic, OpenAI and Google on 127.0.0.1.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("script", type=Path, help="a JSON file")
    parser.add_argument("--port", type=int, default=0, help="the port to listen on; 0, the default, is any free port")
    parser.add_argument("--log", type=Path, help="append every request to this file, a line of JSON each")
    given = parser.parse_args(arguments)
    try:
        _serve(read_script(given.script), given.port, given.log)
    except ClewError as error:
        parser.error(str(error))


def _serve(script: ScriptFile, port: int, log: Path | None) -> None:
    from clew.testing.model_server.server import ModelServer  # needs an extra; `--help` does not

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = ModelServer(
        script.script(),
        port=port,
        by=script.by,
        faults=script.faults,
        key=script.key,
        delay=script.delay,
        context_window=script.context_window,
        models=script.models,
        strict=script.strict,
        on_request=None if log is None else lambda record: _write(log, record),
    )
    if script.fault is not None:
        server.fail(script.fault, calls=None)
    try:
        server.start()
    except OSError as error:
        sys.exit(f"port {port} of 127.0.0.1 cannot be used: {error.strerror or error}")
    try:
        print(server.url, flush=True)
        stop.wait()
    finally:
        server.close()


def _write(log: Path, record: RecordedRequest) -> None:
    """Append a request to the log file as one line of JSON, so that the file can be read while the server runs."""
    fields = {
        "call": record.call,
        "method": record.method,
        "path": record.path,
        "headers": record.headers,
        "body": record.body,
    }
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(fields) + "\n")
