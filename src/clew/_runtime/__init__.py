"""Internal helpers for all of Clew: asyncio, files, text, forks, plug-ins and telemetry."""
