"""The log of a service: one JSON object a line, for its own records and for those of other libraries. The length of a
line is limited."""

from __future__ import annotations

import logging
import sys
import traceback
from datetime import UTC, datetime

import msgspec

__all__ = ["JSONLines", "places", "write_logs"]

LONGEST = 4096
"""The most bytes of a line."""
_LONGEST_MESSAGE = 300
_PLACES = 8


class JSONLines(logging.Formatter):
    """Formats records of the log as lines of JSON.

    The service's own records are JSON already. A record of another library becomes an object with the first line of its
    message. If a record has an exception, the object has the class of the exception and where it was raised. The
    exception's message is left out, because it may contain a tenant's data.
    """

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.name.startswith("clew.server") and message[:1] == "{" and len(message) <= LONGEST:
            return message
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "event": "log",
            "level": record.levelname.lower(),
            "logger": record.name[:100],
            "message": message.partition("\n")[0][:_LONGEST_MESSAGE],
        }
        if record.exc_info and record.exc_info[1] is not None:
            entry |= {"kind": type(record.exc_info[1]).__name__, "at": places(record.exc_info[1])}
        return msgspec.json.encode(entry).decode()


def places(error: BaseException) -> list[str]:
    """Return where an error was raised: the last 8 lines of its traceback as file, line number and function."""
    found = traceback.extract_tb(error.__traceback__)[-_PLACES:]
    return [f"{place.filename}:{place.lineno} {place.name}"[-200:] for place in found]


def write_logs() -> None:
    """Write the log of this process to the standard error as lines of JSON: all of the service, and the warnings of
    every library."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines())
    logging.getLogger().addHandler(handler)
    logging.captureWarnings(True)
    # It warns of every malformed request: strangers could fill the log, or a pipe that nobody empties.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    own = logging.getLogger("clew.server")
    own.addHandler(handler)
    own.setLevel(logging.INFO)
    own.propagate = False
