"""Workspaces: folders of files, whose snapshots are kept in the same store as the threads that work on them."""

from __future__ import annotations

from clew.workspace.compare import Change, Difference
from clew.workspace.manifest import Limits, Progress, Skipped, SnapshotRef
from clew.workspace.restore import Restored
from clew.workspace.workspace import Workspace

__all__ = ["Change", "Difference", "Limits", "Progress", "Restored", "Skipped", "SnapshotRef", "Workspace"]
