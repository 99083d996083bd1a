"""What scheduling has told of a user's space: a line a run beside the records of a log.

Spaces of ready schedules are told again from the knobs. Of a user's schedule a log has the trials
that worked (:mod:`.programs`) and not what makes the others, so what its candidates were refused
for is written down in ``pruned.json``, from where the report has it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .files import append_line, refusing
from .record import Record

PRUNED = "pruned.json"


@dataclass(frozen=True)
class Pruned:
    """What one run left out of a workload's space before building.

    ``workload`` is the hash of the records' workload, ``legal`` how many configurations no rule has
    refused; ``refused`` has how many each rule did, ``reasons`` the sentence of the first of each.
    """

    workload: str
    runner: str
    device: str
    arch: str
    legal: int
    refused: dict[str, int]
    reasons: dict[str, str]

    def is_of(self, record: Record) -> bool:
        """Whether a record is of this workload, runner and GPU."""
        place = (record.workload.hash, record.runner, record.device, record.arch)
        return (self.workload, self.runner, self.device, self.arch) == place

    @classmethod
    def from_json(cls, data: Any) -> Pruned:
        """Read the form of a line; KeyError, TypeError or ValueError if it is not that."""
        texts = {name: str(data[name]) for name in ("workload", "runner", "device", "arch")}
        refused = {str(rule): int(count) for rule, count in dict(data["refused"]).items()}
        reasons = {str(rule): str(text) for rule, text in dict(data["reasons"]).items()}
        return cls(**texts, legal=int(data["legal"]), refused=refused, reasons=reasons)


def note(folder: Path, pruned: Pruned) -> None:
    """Add a line, unless the last of its workload says the same; RecordError if it cannot be."""
    known = [one for one in read_pruned(folder) if one.workload == pruned.workload]
    if not known or known[-1] != pruned:
        with refusing(f"What was pruned was not written to {folder}"):
            append_line(folder / PRUNED, json.dumps(asdict(pruned)))


def read_pruned(folder: Path) -> list[Pruned]:
    """What a log's runs left out, the latest last; lines that are something else are skipped."""
    found: list[Pruned] = []
    with suppress(OSError):
        for line in (folder / PRUNED).read_text(errors="replace").splitlines():
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                found.append(Pruned.from_json(json.loads(line)))
    return found
