"""Internal helpers for all of Clew: asyncio, files, text, forked processes, plug-ins and telemetry."""
