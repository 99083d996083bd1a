"""Compile with what was recorded: the best schedule of each function, or its nearest relative's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.target import Target

from ... import decisions
from ...errors import LayoutExtError, ScheduleError
from ...ir.ops import IS_SCHEDULED
from ...target import better_than_guess, resolve
from ...text import lines_of
from ..records.records import Source, open_source
from ..records.tvm_record import TvmRecord, replay_errors, usable
from ..space.functions import bare
from .nearest import Found, Nearest

_log = logging.getLogger("tvm_layout_ext")
_MAKER = "ApplyBest"
#: So that Relax fuses nothing with a function that is scheduled (``OpPatternKind::kOpaque``).
_PATTERN, _OPAQUE = "op_pattern", 8


#: How a schedule was found, what it is, and what makes it.
Way = tuple[str, str, Callable[[], tirx.PrimFunc]]


@dataclass(frozen=True)
class Applied:
    """What became of one function.

    ``how`` is ``"recorded"`` (its own best record), ``"nearest"`` (the configuration of another
    shape) or ``"none"``; ``text`` is one sentence: which record, or why none.
    """

    name: str
    how: str
    text: str


class Best:
    """The records that hold for a target, ready to be asked for functions.

    ``source`` and ``nearest`` are as of :func:`apply_best`; ``applied`` says what became of each
    function so far.
    """

    def __init__(self, source: Source, nearest: bool = True) -> None:
        self._opened = open_source(source)
        self._with_nearest = nearest
        self._of_arch: dict[str, tuple[list[TvmRecord], Nearest]] = {}
        self.applied: list[Applied] = []

    def module(self, mod: tvm.IRModule, target: Target | None) -> tvm.IRModule:
        """Replace the functions of a module for which there is a schedule.

        A function's own target goes before ``target``; functions that are scheduled already, and
        those of other targets than CUDA, are left alone.
        """
        changed: dict[Any, Any] = {}
        in_relax = any(isinstance(one, relax.Function) for one in mod.functions.values())
        for gv, func in mod.functions.items():
            changed[gv] = func
            if isinstance(func, tirx.PrimFunc) and (arch := _arch(func, target)):
                scheduled = self._schedule(gv.name_hint, func, arch)
                if scheduled is not None:
                    changed[gv] = _dressed(scheduled, func, in_relax)
        return tvm.IRModule(changed, attrs=mod.attrs, global_infos=mod.global_infos)

    def _schedule(self, name: str, func: tirx.PrimFunc, arch: str) -> tirx.PrimFunc | None:
        for how, text, schedule in self._ways(func, arch):
            try:
                scheduled = schedule()
            except (LayoutExtError, *replay_errors) as error:
                reason = lines_of(error)[0]
                _log.warning("%s: cannot use %s: %s", name, text, reason)
                continue
            self._tell(Applied(name, how, f"{text[0].upper()}{text[1:]}."))
            return scheduled
        self._tell(Applied(name, "none", f"No record fits it on {arch}; it is as it was."))
        return None

    def _ways(self, func: tirx.PrimFunc, arch: str) -> Iterator[Way]:
        """Schedules for a function, best first."""
        schedules, nearest = self._on(arch)
        found = nearest.of_function(func)
        first = next(found, None)
        if first is not None and not first.distance:
            yield "recorded", f"record {_told(first)}", first.scheduled
            first = None
        wanted = bare(func)
        stored = next((one for one in schedules if one.computes(wanted)), None)
        if stored is not None:
            yield "recorded", f"the database's line {stored.line + 1}", stored.scheduled
        others = chain([] if first is None else [first], found)
        for one in others if self._with_nearest else ():
            text = (
                f"no record of {one.task.workload}; the configuration of the nearest, "
                f"{one.record.workload}, record {_told(one)}"
            )
            yield "nearest", text, one.scheduled

    def _on(self, arch: str) -> tuple[list[TvmRecord], Nearest]:
        """What holds on an architecture; what is left out is counted, once."""
        if arch not in self._of_arch:
            schedules, foreign = usable(self._opened.schedules.records, arch)
            nearest = Nearest.of(self._opened.trials.records, arch)
            self._warn(arch, foreign + nearest.foreign)
            self._of_arch[arch] = schedules, nearest
        return self._of_arch[arch]

    def _warn(self, arch: str, foreign: int) -> None:
        corrupt = self._opened.corrupt
        parts = [
            f"{foreign} {'record' if foreign == 1 else 'records'} for other versions or GPUs than "
            f"these and {arch}"
            if foreign
            else "",
            f"{corrupt} corrupt {'line' if corrupt == 1 else 'lines'}" if corrupt else "",
        ]
        if any(parts):
            what = " and ".join(part for part in parts if part)
            _log.warning("Skipped %s in %s.", what, self._opened.name)

    def _tell(self, applied: Applied) -> None:
        self.applied.append(applied)
        decisions.note(_MAKER, applied.name, applied.text, refused=applied.how == "none")
        # A schedule that nobody measured at this shape is worth a look.
        level = logging.WARNING if applied.how == "nearest" else logging.INFO
        _log.log(level, "%s: %s", applied.name, applied.text)


def _told(found: Found) -> str:
    how = "measured" if found.record.measured else "modelled"
    return f"{found.record.id}, {how} on {found.record.device}"


def _dressed(scheduled: tirx.PrimFunc, func: tirx.PrimFunc, in_relax: bool) -> tirx.PrimFunc:
    """Give a scheduled function the attributes of the one that it replaces."""
    for key in list(scheduled.attrs.keys()):
        if key not in func.attrs:
            scheduled = scheduled.without_attr(key)
    for key in func.attrs.keys():  # noqa: SIM118 (iterating attrs itself fails)
        scheduled = scheduled.with_attr(key, func.attrs[key])
    if in_relax:
        scheduled = scheduled.with_attr(_PATTERN, _OPAQUE)
    return scheduled.with_attr(IS_SCHEDULED, True)


def _arch(func: tirx.PrimFunc, target: Target | None) -> str | None:
    """Architecture that a function is for; None if it is scheduled, or for no CUDA GPU."""
    if func.attrs.get(IS_SCHEDULED, 0):
        return None
    own = func.attrs.get("target", None)
    chosen = own if own is not None else target
    if chosen is None or chosen.kind.name != "cuda":
        return None
    return str((better_than_guess(chosen) or chosen).attrs["arch"])


def apply_best(
    mod: tvm.IRModule | tirx.PrimFunc,
    database: Source,
    target: str | Target | None = None,
    *,
    nearest: bool = True,
) -> tvm.IRModule:
    """Give each function of a module its best recorded schedule.

    Operators of a Relax module are first lowered and fused, as :func:`tune_module` tuned them. The
    result compiles as any other module. A record stands for a function if both compute the same, on
    this architecture, by these versions of TVM and of this package. RecordError if there are no
    records.

    Parameters
    ----------
    mod : tvm.IRModule or PrimFunc
    database : path, Log, Database or tvm.s_tir.meta_schedule.database.Database
        A log's folder, with JSON lines, a database, or both; or one of these opened.
    target : str or tvm.target.Target, optional
        By default :func:`tvm_layout_ext.default_target`.
    nearest : bool
        Whether a ready operator without a record takes the configuration of the nearest recorded
        shape that is legal for it. A warning of logger ``tvm_layout_ext`` says so.
    """
    module = as_module(mod)
    resolved = resolve(target)
    best = Best(database, nearest)
    return best.module(fused(module, resolved), resolved)


def as_module(mod: Any) -> tvm.IRModule:
    """A module, also of one function; ScheduleError if it is neither."""
    if isinstance(mod, tirx.PrimFunc):
        return tvm.IRModule.from_expr(mod)
    if not isinstance(mod, tvm.IRModule):
        raise ScheduleError(f"A PrimFunc or an IRModule is wanted, not a {type(mod).__name__}.")
    return mod


def fused(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Lower a Relax module's operators to functions and fuse them; others pass through.

    A product by transposed weights, as ``nn.Linear`` is, becomes one function.
    """
    if not any(isinstance(one, relax.Function) for one in mod.functions.values()):
        return mod
    passes = [
        *relax.pipeline.library_dispatch_passes(target),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    with target:
        return tvm.transform.Sequential(passes)(fuse_transposes(mod))


def fuse_transposes(mod: tvm.IRModule) -> tvm.IRModule:
    """Make one function of each transpose and the product that reads it, where TVM's pass can.

    It fails on a product of a matrix by its own transpose, and on a transpose with other readers.
    """
    try:
        return relax.transform.FuseTransposeMatmul()(mod)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        reason = lines_of(error)[0]
        text = f"Transposes stay functions of their own; FuseTransposeMatmul fails: {reason}"
        decisions.note("fused", "FuseTransposeMatmul", text, refused=True)
        return mod
