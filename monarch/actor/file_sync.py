"""Local directories on many hosts, for packages that bring files there: what `HostMesh.sync_workspace` is made of.

A directory is scanned into a manifest; `FolderSync` makes the folders that `Receiver` actors write hold the same, and sends
what differs, once for all hosts that need it.
"""

from __future__ import annotations

from monarch._mesh.workspace.confined_folder import LOCK, ConfinedFolder
from monarch._mesh.workspace.manifest import (
    FILE,
    FOLDER,
    LARGE,
    LINK,
    OTHER,
    OURS,
    Manifest,
    ManifestEntry,
    RefusedPath,
    Rules,
    SyncPlan,
    compare,
    digest,
    parts,
)
from monarch._mesh.workspace.receiver import Problem, Receiver, Root, Taken, answers
from monarch._mesh.workspace.scan import scan
from monarch._mesh.workspace.sender import SourceFolder, check
from monarch._mesh.workspace.sync import FolderSync, HostAnswers, local_manifest, lock_hosts

__all__ = [
    "FILE",
    "FOLDER",
    "LARGE",
    "LINK",
    "LOCK",
    "OTHER",
    "OURS",
    "ConfinedFolder",
    "FolderSync",
    "HostAnswers",
    "Manifest",
    "ManifestEntry",
    "Problem",
    "Receiver",
    "RefusedPath",
    "Root",
    "Rules",
    "SourceFolder",
    "SyncPlan",
    "Taken",
    "answers",
    "check",
    "compare",
    "digest",
    "local_manifest",
    "lock_hosts",
    "parts",
    "scan",
]
