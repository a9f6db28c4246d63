"""A coding agent's program as small as can be: it does what the prompt says, line by line, and keeps a file of rows.

toy_program.py FILE [--system TEXT]       the prompt is its standard input
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ASKED = b'{"model": "any", "messages": [{"role": "user", "content": "Go."}]}'


def say(**value: Any) -> None:
    print(json.dumps(value), flush=True)


def main() -> None:
    file = Path(sys.argv[1])
    prompt = sys.stdin.read()
    if "forget all" in prompt.splitlines():
        forgetting.append("all")
    keep(file, role="user", text=prompt)
    for line in prompt.splitlines():
        verb, _, rest = line.partition(" ")
        if verb == "say":
            say(say=rest)
            keep(file, role="assistant", text=rest)
        elif verb == "stream":
            for word in rest.split():
                say(delta=word + " ")
        elif verb == "think":
            say(think=rest)
        elif verb == "call":
            say(call=rest)
            keep(file, role="call", text=rest)
        elif verb == "result":
            call, _, output = rest.partition(" ")
            say(result=output, of=call)
            keep(file, role="result", text=output, of=call)
        elif verb == "child":
            say(say=rest, child="c1")
        elif verb == "spawn":
            child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            Path(rest).write_text(f"{os.getpid()} {child.pid}")
        elif verb == "stderr":
            os.write(2, b"e" * int(rest))
        elif verb == "write":
            name, _, text = rest.partition(" ")
            Path(name).write_text(text)
        elif verb == "echo":
            text = " ".join([Path.cwd().name, *sys.argv[2:], *(f"{row['role']}={row['text']}" for row in rows(file))])
            say(say=text)
            keep(file, role="assistant", text=text)
        elif verb == "sleep":
            time.sleep(float(rest))
        elif verb == "ask":
            try:
                urllib.request.urlopen(urllib.request.Request(rest, ASKED, {"Content-Type": "application/json"})).read()
            except urllib.error.HTTPError as error:
                say(fail=f"{error.code} {error.read().decode()}", kind="failed")
                sys.exit(1)
        elif verb == "fail":
            kind, _, reason = rest.partition(" ")
            say(fail=reason, kind=kind)
            sys.exit(1)
        elif verb == "forget":
            forgetting.append(rest)
        elif verb == "crash":
            os.kill(os.getpid(), 9)
    say(done=len(rows(file)))


def rows(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


forgetting: list[str] = []


def keep(file: Path, **row: str) -> None:
    """Unless the prompt said to forget all of it, or what comes from here on."""
    if forgetting:
        return
    with file.open("a") as target:
        target.write(json.dumps(row) + "\n")


main()
