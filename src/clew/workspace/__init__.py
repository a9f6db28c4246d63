"""Workspaces: folders of files, kept as snapshots in the same store as the threads that work on them."""

from __future__ import annotations

from clew.workspace.comparing import Change, Difference
from clew.workspace.limits import Limits
from clew.workspace.restoring import Restored
from clew.workspace.snapshots import Progress, Skipped, SnapshotRef
from clew.workspace.workspace import Workspace

__all__ = ["Change", "Difference", "Limits", "Progress", "Restored", "Skipped", "SnapshotRef", "Workspace"]
