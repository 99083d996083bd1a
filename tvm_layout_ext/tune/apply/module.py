"""``tune_module``: tune every function of a module, Relax or TensorIR, into one log."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target
from tvm_ffi import structural_equal

from ... import decisions
from ...checks import whole_number
from ...errors import LayoutExtError, ScheduleError
from ...target import resolve
from ..measure.backend_pool import BackendPool
from ..records.record import best_first
from ..records.records import Records, archive
from ..search.prepare import FIRST, Prepared
from ..search.tune import Result, tune
from ..space.off_tensor_cores import off_tensor_cores
from ..space.operator import Operator, Shape, Workload, known_operators, operator_of
from ..space.recognise import recognise
from ..space.task import make_task
from .apply import as_module, fused

_log = logging.getLogger("tvm_layout_ext")
#: Best trials of each task whose schedules go to the database.
_ARCHIVED = 8
#: Functions that are begun at once where each has few trials: one alone leaves most cores idle.
AHEAD = 6
#: Functions that the summary of a result names.
_TOLD = 6
#: Ready operators that multiply, but not on tensor cores.
_ORDINARY = ("matmul",)


@dataclass(frozen=True)
class ModuleTask:
    """One computation of a module.

    ``weight`` is how often the module calls it, ``module`` holds the function as TVM's database is
    asked for it. ``shape`` is ``()`` where the operator was made for the function.
    ``off_tensor_cores`` has its products that are not put on tensor cores, with the reason.
    """

    name: str
    weight: int
    module: tvm.IRModule
    operator: Operator
    shape: Shape
    dtype: str
    off_tensor_cores: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class ModuleResult:
    """What tuning a module found, by the names of its functions.

    ``log`` is the folder for :func:`apply_best`. ``skipped`` and ``off_tensor_cores`` give the
    reasons, one sentence a function; ``interrupted`` says whether Ctrl-C ended it early.
    """

    log: str
    results: dict[str, Result] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    off_tensor_cores: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        ended = ", interrupted" if self.interrupted else ""
        said = [
            f"ModuleResult: {len(self.results)} functions tuned, {len(self.skipped)} skipped"
            f"{ended}; records in {self.log}"
        ]
        for name, result in list(self.results.items())[:_TOLD]:
            said.append(f"  {name}: {repr(result).splitlines()[0].removeprefix('Result: ')}")
        rest = len(self.results) - _TOLD
        return "\n".join([*said, *([f"  and {rest} more"] if rest > 0 else [])])


def module_tasks(
    mod: tvm.IRModule | tirx.PrimFunc, target: str | Target | None = None
) -> tuple[list[ModuleTask], dict[str, str]]:
    """List the computations of a module, and the functions that cannot be tuned, with the reason.

    Operators of a Relax module are first lowered and fused, see :func:`.fused`.
    """
    module = as_module(mod)
    tasks: list[ModuleTask] = []
    skipped: dict[str, str] = {}
    gpu = resolve(target)
    for name, weight, one in _extracted(module, gpu):
        try:
            with gpu:
                found = _operator(one["main"], name)
                off = found[0].off_tensor_cores
                if found[0].name in _ORDINARY:
                    off = off_tensor_cores(one["main"])
            tasks.append(ModuleTask(name, weight, one, *found, off))
        except LayoutExtError as error:
            skipped[name] = str(error)
    return tasks, skipped


def _extracted(mod: tvm.IRModule, target: Target) -> list[tuple[str, int, tvm.IRModule]]:
    if any(isinstance(one, relax.Function) for one in mod.functions.values()):
        found = ms.relax_integration.extract_tasks(fused(mod, target), target)
        return [(str(t.task_name), int(t.weight), t.dispatched[0]) for t in found]
    return [
        (gv.name_hint, 1, tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
        for gv, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc)
    ]


def _operator(func: tirx.PrimFunc, name: str) -> tuple[Operator, Shape, str]:
    for known in known_operators():
        if found := recognise(func, known):
            return found
    operator = operator_of(func, name=name)
    return operator, (), operator.dtypes[0]


def tune_module(
    mod: tvm.IRModule | tirx.PrimFunc,
    target: str | Target | None = None,
    *,
    trials: int = 64,
    log: str | os.PathLike[str],
    search: Callable[..., Result] = tune,
    **options: Any,
) -> ModuleResult:
    """Tune every function of a module; :func:`apply_best` then compiles with what was found.

    A function that is a ready operator is tuned as that. Any other gets a schedule that fits its
    blocks: products on tensor cores, everything else coalesced. What cannot be tuned is skipped
    with the reason. The most often called is tuned first. After Ctrl-C the result is what was found
    until then.

    Parameters
    ----------
    mod : tvm.IRModule or PrimFunc
    target : str or tvm.target.Target, optional
        By default :func:`tvm_layout_ext.default_target`.
    trials : int
        For each function; fewer if its space is smaller.
    log : path
        Folder for the records and the database; trials that are in it are not run again.
    search : callable
        What tunes one function, by default :func:`tvm_layout_ext.tune.tune`.
    **options
        For ``search``: runner, seed, progress and so on.
    """
    trials = whole_number("The number of trials", trials, 1, ScheduleError)
    if not callable(search):
        raise ScheduleError(f"What searches is a function as tlx.tune is, not {search!r}.")
    # Processes take seconds to import TVM: those of one task serve the next.
    pool = BackendPool(options.get("runner", "auto"))
    tasks, skipped = module_tasks(mod, target)
    off = {task.name: " ".join(task.off_tensor_cores.values()) for task in tasks}
    off = {name: reason for name, reason in off.items() if reason}
    _warn("is not tuned", skipped)
    _warn("is not put on tensor cores", off)
    if not tasks and not skipped:
        raise ScheduleError("No function of the module can be tuned. It holds none.")
    records = Records(log)
    known = {record.workload for record in records.prepare().records}
    result = ModuleResult(str(log), skipped=skipped, off_tensor_cores=off)
    if target is not None:
        options["target"] = resolve(target)
    options["runner"] = pool
    ordered = sorted(tasks, key=lambda one: -one.weight)
    try:
        for index, task in enumerate(ordered):
            steps: Iterator[bool] = iter(())
            if search is tune:
                steps = _prepare(ordered[index:], pool, trials, known, options)
                next(steps, None)
            pool.meanwhile = partial(next, steps, False)
            found = search(
                task.operator, shape=task.shape, dtype=task.dtype, trials=trials, log=log, **options
            )
            while next(steps, False):
                pass
            result.results[task.name] = found
            # Of what was tuned as it stands, all that ran now is in the database already.
            if found.resumed or not structural_equal(task.module, found.task.unscheduled):
                for record in best_first(found.trials)[:_ARCHIVED]:
                    archive(records.database, found.task, record, workload=task.module)
            if found.interrupted:
                return replace(result, interrupted=True)
    except KeyboardInterrupt:
        return replace(result, interrupted=True)
    finally:
        pool.close()
    return result


def _prepare(
    ordered: Sequence[ModuleTask],
    pool: BackendPool,
    trials: int,
    known: set[Workload],
    options: Mapping[str, Any],
) -> Iterator[bool]:
    """Begin tasks to come while the first of them is tuned, unless the log has trials of them.

    Step by step, the first for the task itself; False as long as there is nothing to do.
    """
    window = []
    for one in ordered[: AHEAD if trials <= FIRST + 1 else 2]:
        with suppress(LayoutExtError):
            # What is refused is refused again when it is tuned.
            task = make_task(
                one.operator, one.shape, one.dtype, options.get("seed", 0), options.get("target")
            )
            if task not in pool.prepared and task.workload not in known:
                pool.prepared[task] = Prepared(task)
                pool.prepared[task].begin(pool, trials)
            window.append(task)
        yield True
    while True:
        later = [pool.prepared[task] for task in window[1:] if task in pool.prepared]
        yield any(one.begin_all(pool, trials) for one in later)


def _warn(what: str, reasons: Mapping[str, str]) -> None:
    for name, reason in reasons.items():
        decisions.note("tune_module", name, f"It {what}. {reason}", refused=True)
        _log.warning("%s %s: %s", name, what, reason)
