"""`python -m bench`: every measurement, then one table."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from bench import show
from bench.agent_runs import agent_runs
from bench.appending import appending
from bench.command import command
from bench.counting import counting
from bench.crowd import crowd
from bench.fleet import fleet
from bench.folders import folders
from bench.http import http
from bench.large import large
from bench.listing import listing
from bench.machine import facts
from bench.opening import opening
from bench.peers import beside_peers
from bench.postgres import postgres
from bench.providers import providers
from bench.redis import redis
from bench.results import Result
from bench.scale import FULL, QUICK, Scale
from bench.sizes import sizes
from bench.temporal import temporal

MEASUREMENTS: dict[str, Callable[[Scale], Awaitable[list[Result]]]] = {
    "append": appending,
    "count": counting,
    "size": sizes,
    "open": opening,
    "crowd": crowd,
    "list": listing,
    "large": large,
    "command": command,
    "folders": folders,
    "agent": agent_runs,
    "postgres": postgres,
    "redis": redis,
    "http": http,
    "fleet": fleet,
    "providers": providers,
    "temporal": temporal,
    "peers": beside_peers,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Clew beside the floors and its peers, as ratios."
    )
    parser.add_argument("--quick", action="store_true", help="small sizes and two repeats: to see that it runs")
    parser.add_argument("--only", choices=MEASUREMENTS, action="append", help="one measurement; may be given again")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results and the machine's facts there too")
    options = parser.parse_args()

    machine = facts()
    results = asyncio.run(measure(options.only or list(MEASUREMENTS), QUICK if options.quick else FULL))
    print((show.markdown if options.markdown else show.plain)(results))
    print()
    print("\n".join(f"{'- ' if options.markdown else ''}{name}: {value}" for name, value in machine.items()))
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": machine, "results": results})))


async def measure(names: list[str], scale: Scale) -> list[Result]:
    """The results of these measurements; with their limits only at the scale those are meant for."""
    results: list[Result] = []
    for name in names:
        results += await MEASUREMENTS[name](scale)
    return results if scale == FULL else [msgspec.structs.replace(result, limit=None) for result in results]


if __name__ == "__main__":
    main()
