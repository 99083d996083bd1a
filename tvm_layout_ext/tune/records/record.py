"""One trial of the tuner, as it is written down: its fields, its identity and its JSON form."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from tvm import s_tir
from tvm.target import Target

from ...errors import RecordError, ScheduleError
from ...target import cuda_target
from ..model.cost import Counters
from ..space.knobs import Value
from ..space.operator import Operator, Workload, known_operators
from ..space.task import make_task

SCHEMA_VERSION = 1
#: The runner whose scores are a model's, and all that there are.
MODELLED = "simulate"
RUNNERS = ("cuda", "rpc", MODELLED)
#: What a repeat finds in the L2 cache: the last one's data, none, or another set of inputs.
L2_STATES = ("warm", "flushed", "rotated")
_KINDS = ("trial", "finalist")


@dataclass(frozen=True, repr=False)
class Record:
    """One trial; ``docs/tuning.md`` has a table of the fields.

    ``id``, 12 hexadecimal digits made of :attr:`group` and the configuration, is given by nobody.
    ``program`` tells what a user's schedule made of the configuration; by it :class:`.Programs`
    finds the trace in the database.
    """

    time: str
    runner: str
    device: str
    arch: str
    versions: dict[str, str | None]
    workload: Workload
    trial: int
    config: dict[str, Value]
    status: str
    seed: int
    times: tuple[float, ...] = ()
    median: float | None = None
    spread: float | None = None
    tflops: float | None = None
    gbps: float | None = None
    smem_bytes: int | None = None
    registers: int | None = None
    conflict_model: dict[str, float] | None = None
    verified_on: str | None = None
    error_class: str | None = None
    error_text: str | None = None
    git_id: str | None = None
    kind: str = "trial"
    l2: str | None = None
    protocol: dict[str, Value | float] | None = None
    clock_mhz: float | None = None
    spill_bytes: int | None = None
    server: str | None = None
    phases: dict[str, float] | None = None
    program: str | None = None
    id: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name, legal in _CHOICES.items():
            if (value := getattr(self, name)) not in legal:
                raise ValueError(f"{name} {value!r} is none of {', '.join(map(str, legal))}")
        key = json.dumps([*self.group, sorted(self.config.items())])
        object.__setattr__(self, "id", hashlib.sha256(key.encode()).hexdigest()[:12])

    def __repr__(self) -> str:
        score = "failed" if self.score is None else f"modelled cost {self.score:,.0f}"
        if self.score is not None and self.measured:
            score = f"{1e6 * self.score:,.2f} us on {self.device}"
        knobs = " ".join(f"{name}={value}" for name, value in self.config.items())
        return f"Record({self.id}: {self.workload}, trial {self.trial}, {score}; {knobs})"

    @property
    def group(self) -> tuple[Any, ...]:
        """What must agree before a record stands for a trial to come."""
        versions = self.code_versions
        return (self.workload.hash, self.runner, self.device, self.arch, *versions, self.seed)

    @property
    def code_versions(self) -> tuple[str | None, str | None]:
        """Of TVM and of this package, which make the code; None where nobody wrote it down."""
        return self.versions.get("tvm"), self.versions.get("package")

    @property
    def score(self) -> float | None:
        """Seconds if measured, modelled cycles if simulated, None if the trial failed."""
        if self.status != "ok":
            return None
        return self.median if self.measured else (self.conflict_model or {}).get("cost")

    @property
    def measured(self) -> bool:
        """Whether its score is a time, not a model's."""
        return self.runner != MODELLED

    @property
    def target(self) -> Target:
        """What its kernel is for."""
        return cuda_target(self.arch)

    def schedule(self, operator: Operator | None = None) -> s_tir.Schedule:
        """Its configuration's schedule, of a ready operator or of the one that is given.

        RecordError if it failed, or the operator is neither ready nor takes the configuration.
        """
        if self.status != "ok":
            raise RecordError(f"Record {self.id} failed ({self.error_class}); it has no kernel.")
        work = self.workload
        if operator is None and work.operator not in known_operators():
            raise RecordError(
                f"Record {self.id} is of {work.operator}, which is no ready operator; take "
                "tune's result, or give operator=Programs(log).operator(record)."
            )
        task = make_task(operator or work.operator, work.shape, work.dtype, self.seed, self.target)
        try:
            task.operator.check_config(self.config)
        except ScheduleError as error:
            raise RecordError(f"Record {self.id} has no kernel today: {error}") from None
        return task.schedule(self.config)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, ``schema_version`` first; inverse of :meth:`from_json`."""
        data = asdict(self) | {"workload": self.workload.to_json(), "times": list(self.times)}
        return {"schema_version": SCHEMA_VERSION, "id": data.pop("id"), **data}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Read :meth:`to_json`'s form; KeyError, TypeError or ValueError if it is not that."""
        # Fields that came later may be missing from older lines.
        values = {
            f.name: data[f.name] if f.name not in _LATER else data.get(f.name, f.default)
            for f in fields(cls)
            if f.name != "id"
        }
        values["workload"] = Workload.from_json(values["workload"])
        values["times"] = tuple(map(float, values["times"]))
        for name, kind in _TYPES.items():
            value = values.get(name, "")
            if not isinstance(value, kind) or (
                isinstance(value, float) and not math.isfinite(value)
            ):
                raise ValueError(f"{name} is {value!r}")
        if not all(isinstance(value, Value) for value in values["config"].values()):
            raise ValueError(f"config is {values['config']!r}")
        if values["conflict_model"] is not None:
            _check_model(values["conflict_model"])
        return cls(**values)


def _check_model(model: Any) -> None:
    """Raise unless all counters are there, and all numbers; KeyError, TypeError or ValueError."""
    Counters.from_json(model)
    if not all(math.isfinite(model[name]) for name in ("cost", "sectors_per_request")):
        raise ValueError(f"conflict_model is {model!r}")


_NAMES = [f.name for f in fields(Record)]
#: Not yet in the first logs: fields from ``kind`` on.
_LATER = frozenset(_NAMES[_NAMES.index("kind") : _NAMES.index("id")])
_CHOICES: dict[str, tuple[str | None, ...]] = {
    "status": ("ok", "error"),
    "runner": RUNNERS,
    "kind": _KINDS,
    "l2": (None, *L2_STATES),
}


def _kinds(hint: Any) -> Any:
    """What an annotated value may be an instance of; a whole number is a float, too."""
    parts = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    kinds = tuple(get_origin(part) or part for part in parts)
    return (*kinds, int) if float in kinds else kinds


_TYPES = {name: _kinds(hint) for name, hint in get_type_hints(Record).items()}


#: Medians this close, relative to the best, are not told apart. One and the same transpose took
#: 530.6 us in one process and 533.9 us in another (H200; ``tuning_logs``, ``benchmarks/results``).
NOISE = 0.005


def best_first(records: Iterable[Record]) -> list[Record]:
    """Order records: the leaders, the other trials that worked by score, then those that failed.

    Leaders are the measured trials within :data:`NOISE` of the fastest; among them the modelled
    cost decides, so that a kernel with bank conflicts does not win by a fluke.
    """
    by_score = sorted(records, key=_by_score)
    if not by_score or by_score[0].score is None:
        return by_score
    best = by_score[0].score
    leaders = [r for r in by_score if _is_leader(r, best)]
    return sorted(leaders, key=_modelled) + [r for r in by_score if not _is_leader(r, best)]


def _by_score(record: Record) -> tuple[bool, float, int]:
    score = record.score
    return score is None, score or 0.0, record.trial


def _is_leader(record: Record, best: float) -> bool:
    score = record.score
    return record.measured and score is not None and score <= best * (1 + NOISE)


def _modelled(record: Record) -> tuple[float, float, int]:
    cost = (record.conflict_model or {}).get("cost", math.inf)
    return cost, record.score or 0.0, record.trial
