"""What all of Clew stands on and no user calls: awaiting, files, text, forks, plug-ins, telemetry."""
