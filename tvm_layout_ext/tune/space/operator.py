"""What a file in ``schedules/`` declares, and the registry by which operators are found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from math import prod
from typing import Any

import numpy as np
import tvm

from ... import te
from ...checks import whole_number
from ...errors import ScheduleError
from ...gpu.hardware import Architecture
from ...text import suggestion
from .knobs import Config, Knob, Refusal


@dataclass(frozen=True)
class Workload:
    """An operator with its shape and element type."""

    operator: str
    shape: tuple[int, ...]
    dtype: str

    @cached_property
    def hash(self) -> str:
        """Sixteen hex digits that depend on nothing but the three fields."""
        text = json.dumps([self.operator, list(self.shape), self.dtype])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Fields of the record's ``workload`` entry; inverse of :meth:`from_json`."""
        return {
            "operator": self.operator,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "hash": self.hash,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Workload:
        """Read a record's ``workload`` entry; ValueError if its hash does not fit its fields."""
        workload = cls(str(data["operator"]), tuple(map(int, data["shape"])), str(data["dtype"]))
        if workload.hash != data["hash"]:
            raise ValueError(f"workload hash {data['hash']} is not {workload.hash}")
        return workload

    def __str__(self) -> str:
        # A function's own operator has no dimensions.
        shape = "x".join(map(str, self.shape))
        return " ".join(filter(None, (self.operator, shape, self.dtype)))


Shape = tuple[int, ...]
#: Of an array, whose index has 32 bits.
MOST_ELEMENTS = 2**31 - 1


@dataclass(frozen=True)
class Tolerance:
    """How far a result may lie from NumPy's: ``|got - want| <= atol + rtol * |want|``."""

    rtol: float = 0.0
    atol: float = 0.0


def draw(shape: Sequence[int], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Random bits, so that a lost or doubled element shows; floats stay finite."""
    # NumPy takes bfloat16 for neither floats nor integers.
    if np.dtype(dtype).kind in "fV":
        return rng.standard_normal(shape, np.float32).astype(dtype)
    return rng.integers(-128, 128, shape, dtype)


def _drawn(
    compute: Callable[[Shape, str], list[Any]], shape: Shape, dtype: str, rng: np.random.Generator
) -> list[np.ndarray]:
    tensors = compute(shape, dtype)[:-1]
    return [draw(tuple(map(int, one.shape)), str(one.dtype), rng) for one in tensors]


@lru_cache(maxsize=64)
def _moved(compute: Callable[[Shape, str], list[Any]], shape: Shape, dtype: str) -> int:
    tensors = compute(shape, dtype)
    return sum(prod(map(int, t.shape)) * np.dtype(str(t.dtype)).itemsize for t in tensors)


#: Stands for what the tensors of an operator tell.
_BY_TENSORS: Any = None


@dataclass(frozen=True)
class Operator:
    """A computation with a schedule whose knobs the tuner turns."""

    name: str  #: As the command line spells it
    dims: tuple[str, ...]  #: Names of the shape's numbers, e.g. ``("M", "N", "K")``
    #: The dimensions that only add thread blocks, so that counting may shorten them.
    parallel: tuple[str, ...]
    dtypes: tuple[str, ...]  #: Element types that it accepts
    knobs: tuple[Knob, ...]
    #: The tensors in the kernel's argument order, output last.
    compute: Callable[[Shape, str], list[Any]]
    #: Tensors and a configuration to a TE-style schedule, or a ``tvm.s_tir.Schedule``.
    schedule: Callable[[Sequence[Any], Config], Any]
    #: The rule that a candidate breaks, or None if it is legal.
    check: Callable[[Shape, str, Config, Architecture], Refusal | None]
    reference: Callable[..., np.ndarray]  #: What NumPy makes of the inputs
    #: Drawn at random; by default all tensors but the last, by :func:`draw`.
    inputs: Callable[[Shape, str, np.random.Generator], list[np.ndarray]] = _BY_TENSORS
    #: Bytes that must at least move between device memory and chip; by default all tensors once.
    traffic: Callable[[Shape, str], int] = _BY_TENSORS
    flops: Callable[[Shape], int] = lambda shape: 0
    #: By default the result must be exact.
    tolerance: Callable[[Shape, str], Tolerance] = lambda shape, dtype: Tolerance()
    #: The rule by which another candidate is surely no worse, or None; also of illegal ones.
    prune: Callable[[Shape, str, Config, Architecture], Refusal | None] | None = None
    #: The values of other knobs with which alone ``prune`` lets knobs that are ``apart`` have
    #: others than ``before``: there may be many of these, and they are asked about only there.
    beside: Callable[[Shape, str], Config] | None = None
    #: The computation as a PrimFunc, where it does not come from tensors; ``compute`` then gives
    #: its buffers, and ``schedule`` starts from it.
    function: Callable[[Shape, str], Any] | None = None
    #: The knobs whose default depends on the shape, for a configuration that gives all of them the
    #: value ``before``.
    fit: Callable[[Shape, str, Config, Architecture], Config] | None = None
    #: Whether the GPU's limits are asked once a candidate is scheduled, as ``check`` does not know
    #: them; one that its schedule refuses by a ``LayoutExtError`` is then not legal, either.
    judged_late: bool = False
    #: Products that are not put on tensor cores, by block, with the reason in one sentence.
    off_tensor_cores: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        # Spaces are judged once an operator, which must be a key for that; lists are none.
        for name in ("dims", "parallel", "dtypes", "knobs"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, usual in (("inputs", _drawn), ("traffic", _moved)):
            if getattr(self, name) is _BY_TENSORS:
                object.__setattr__(self, name, partial(usual, self.compute))

    def unscheduled(self, shape: Shape, dtype: str) -> tvm.IRModule:
        """The computation before any schedule, as function ``main`` of a module."""
        if self.function is not None:
            function = self.function(shape, dtype)
        else:
            function = te.create_prim_func(list(self.compute(shape, dtype)))
        return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})

    def default_config(self) -> dict[str, Any]:
        """The configuration of trial 0."""
        return {knob.name: knob.default for knob in self.knobs}

    def refuse(
        self, shape: Shape, dtype: str, config: Config, architecture: Architecture
    ) -> Refusal | None:
        """Why a configuration is not legal or not worth trying, or None."""
        # Pruning goes first: its rules are few comparisons, and leave a tenth of the combinations.
        if self.prune is not None and (found := self.prune(shape, dtype, config, architecture)):
            return found
        return self.check(shape, dtype, config, architecture)

    def check_shape(self, shape: Any) -> Shape:
        """Return a shape as a tuple, or raise ScheduleError saying what is wrong with it."""
        wanted = f"{self.name} needs a shape of {len(self.dims)} numbers ({' '.join(self.dims)})"
        if isinstance(shape, str) or not isinstance(shape, Sequence):
            raise ScheduleError(f"{wanted}, not {shape!r}.")
        if len(shape) != len(self.dims):
            raise ScheduleError(f"{wanted}, not {len(shape)}.")
        found = tuple(
            whole_number(f"{dim} of {self.name}", extent, 1, ScheduleError)
            for dim, extent in zip(self.dims, shape, strict=True)
        )
        for dim, extent in zip(self.dims, found, strict=True):
            if extent > MOST_ELEMENTS:
                raise ScheduleError(
                    f"{dim} of {self.name} is {extent:,}, and the ready schedules index with 32 "
                    f"bits: at most {MOST_ELEMENTS:,} is legal."
                )
        return found

    def check_dtype(self, dtype: str) -> str:
        """Return an element type, or raise ScheduleError listing those the operator has."""
        if not isinstance(dtype, str) or dtype not in self.dtypes:
            raise ScheduleError(
                f"{self.name} has no dtype {dtype}; it has {', '.join(self.dtypes)}."
                f"{suggestion(str(dtype), self.dtypes)}"
            )
        return dtype

    def check_config(self, config: Config) -> None:
        """Raise ScheduleError unless a configuration gives every knob one of its values."""
        names = [knob.name for knob in self.knobs]
        known = [k.name for k in self.knobs if k.name in config or k.before is None]
        if sorted(config) != sorted(known):
            raise ScheduleError(
                f"{self.name} has the knobs {', '.join(names)}, not {', '.join(config)}."
            )
        for knob in self.knobs:
            if knob.of(config) not in knob.values:
                raise ScheduleError(
                    f"Knob {knob.name} of {self.name} cannot be {knob.of(config)}; "
                    f"it can be {', '.join(map(str, knob.values))}."
                )


#: What makes an operator of a function; ``schedules/`` names it.
_MAKERS: list[Callable[..., Operator]] = []
#: What gives each operator, by name; files of schedules are imported when first asked for.
_LOADERS: dict[str, Callable[[], Operator]] = {}


def register_operator(name: str, load: Callable[[], Operator]) -> None:
    """Let :func:`find_operator` and the command line know an operator, which ``load`` gives."""
    if not isinstance(name, str) or not callable(load):
        raise ScheduleError("An operator is registered by a name and a function that gives it.")
    if name in _LOADERS:
        raise ScheduleError(f"There is an operator {name!r} already; choose another name.")
    _LOADERS[name] = load


def known_operators() -> list[str]:
    """Names of the registered operators, without importing their files."""
    return sorted(_LOADERS)


def find_operator(name: str) -> Operator:
    """Load an operator by name; ScheduleError, with a list of names, if there is none."""
    if not isinstance(name, str):
        raise ScheduleError(f"An operator is named by a str, not {name!r}.")
    if name not in _LOADERS:
        known = known_operators()
        raise ScheduleError(
            f"Unknown operator {name!r}; known are {', '.join(known)}.{suggestion(name, known)}"
        )
    return _LOADERS[name]()


def register_maker(make: Callable[..., Operator]) -> None:
    """Say what makes an operator of a function from now on."""
    _MAKERS[:] = [make]


def operator_of(
    func: Any,
    schedule: Callable[..., Any] | None = None,
    knobs: Sequence[Knob] = (),
    **options: Any,
) -> Operator:
    """Make an operator of a function: :func:`._generic.operator_of`."""
    return _MAKERS[0](func, schedule, knobs, **options)
