"""The file in which findings are kept, so that a page can be written, or one measure repeated, without the others.

    {"runs": {"PostgreSQL 15": {"load": 0, "conditions": [...], "measures": {"wal": {...}, ...}}}, "peers": {...}}

A run is what was measured on one version of PostgreSQL, either on a quiet machine or beside a load.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from .findings import Findings


@dataclass(frozen=True)
class Kept:
    """What is kept of a measure. `failed` says why it has no findings."""

    findings: Findings
    seconds: float
    settings: str  # rounds and sizes
    failed: str = ""

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "findings": self.findings.as_json()}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Self:
        return cls(**{**kept, "findings": Findings.from_json(kept["findings"])})


@dataclass
class Run:
    load: int
    conditions: list[str] = field(default_factory=list)
    measures: dict[str, Kept] = field(default_factory=dict)


@dataclass
class Store:
    runs: dict[str, Run] = field(default_factory=dict)
    peers: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None) -> Self:
        """What the file holds; an empty store if there is none."""
        if path is None or not path.exists():
            return cls()
        kept = json.loads(path.read_text("utf-8"))
        runs = {
            name: Run(run["load"], run["conditions"], {k: Kept.from_json(v) for k, v in run["measures"].items()})
            for name, run in kept["runs"].items()
        }
        return cls(runs, kept["peers"])

    def write(self, path: Path) -> None:
        """Replace the file as a whole: an interrupted run leaves the former one."""
        runs = {
            name: {**vars(run), "measures": {k: kept.as_json() for k, kept in run.measures.items()}}
            for name, run in self.runs.items()
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(path.name + ".new")
        beside.write_text(json.dumps({"runs": runs, "peers": self.peers}, indent=1) + "\n", "utf-8")
        os.replace(beside, path)


def name_of(version: str, load: int) -> str:
    """The name of a run, for example `PostgreSQL 15, loaded`."""
    return f"PostgreSQL {version.split('.')[0]}" + (", loaded" if load else "")
