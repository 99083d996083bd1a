"""``DefaultSchedule``: a schedule for each function of a module, without tuning."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from .. import decisions
from ..build import lower
from ..checks import takes_module
from ..ir import lowered_once
from ..ir.diagnostics import reason
from ..ir.ops import IS_SCHEDULED
from ..ir.tidy import tidy
from ..ir.walk import launches, top_statements
from ..target import better_than_guess
from ..tune.apply.apply import Best
from ..tune.records.records import Source
from .any_size.pixels_as_rows import without_places
from .any_size.sizes_as_variables import sizes_as_variables
from .modelled import least_seconds, seconds
from .rule import REFUSALS, Scheduled
from .rules import LAST, MODELLED, RULES, SLOWER

_log = logging.getLogger("tvm_layout_ext")
_MAKER = "DefaultSchedule"
#: What only a mistake of this package raises: others are asked, and the choice says so.
_MISTAKES = (AssertionError, AttributeError, IndexError, KeyError, NameError, TypeError)
#: How many times the least time a schedule may take before others are asked.
_WORTH = 1.5
#: What a model that was fitted to our kernels may be wrong about dlight's.
_DOUBT = 1.25
#: Seconds by which two short kernels may differ from one measurement to the next.
_NOISE = 1e-6


@dataclass(frozen=True)
class FunctionChoice:
    """What became of one function.

    ``rule`` is a key of :data:`.rules.RULES`, ``record``, or ``none`` where nobody schedules it;
    ``text`` is one sentence. ``refused`` has the sentences of the rules that were asked before.
    """

    name: str
    rule: str
    text: str
    refused: tuple[str, ...] = ()

    @property
    def fell_back(self) -> bool:
        """Whether none of this package's own rules took it."""
        return self.rule in (LAST, "none")


@takes_module
@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.DefaultSchedule")
class DefaultSchedule:
    """Schedule every function of a module, used as dlight's ``ApplyDefaultSchedule`` is.

    Records go first where a log is given. Then products go to tensor cores, chains along rows into
    one kernel, and of everything else each block is coalesced. What none of these takes, dlight's
    rules do, and a sentence of logger ``tvm_layout_ext`` says why. Functions that are scheduled
    already, and those of other targets than CUDA, are left alone.

    Parameters
    ----------
    log : path, Log, Database or tvm.s_tir.meta_schedule.database.Database, optional
        Records as of :func:`.apply_best`.

    Attributes
    ----------
    choices : list of FunctionChoice
        What became of each function so far, in order.

    Examples
    --------
    >>> schedule = DefaultSchedule()
    >>> with tlx.default_target():  # doctest: +SKIP
    ...     mod = schedule(mod)
    >>> print(schedule.choices[0].text)  # doctest: +SKIP
    """

    def __init__(self, log: Source | None = None) -> None:
        self.best = None if log is None else Best(log)
        self.choices: list[FunctionChoice] = []

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Replace the functions of a module by scheduled ones."""
        around = Target.current(allow_none=True)
        if self.best is not None:
            known = len(self.best.applied)
            mod = self.best.module(mod, around)
            for one in self.best.applied[known:]:
                if one.how != "none":
                    self.choices.append(FunctionChoice(one.name, "record", one.text))
        changed = {
            gv: self._scheduled(gv.name_hint, func, around) if _is_ours(func) else func
            for gv, func in mod.functions.items()
        }
        return tvm.IRModule(changed, attrs=mod.attrs, global_infos=mod.global_infos)

    def _scheduled(self, name: str, func: tirx.PrimFunc, around: Target | None) -> tirx.PrimFunc:
        own = func.attrs.get("target", None)
        target = own if own is not None else around
        if target is None or target.kind.name != "cuda":
            return func
        target = better_than_guess(target) or target
        with target:
            choice, found = choose(name, func, target)
        self.choices.append(choice)
        decisions.note(_MAKER, name, choice.text, refused=choice.fell_back)
        _log.log(logging.WARNING if choice.fell_back else logging.INFO, "%s: %s", name, choice.text)
        return func if found is None else found.function.with_attr(IS_SCHEDULED, True)


def _is_ours(func: Any) -> bool:
    """Whether a function has no schedule, or loops without one beside kernels of its own."""
    if not isinstance(func, tirx.PrimFunc) or func.attrs.get(IS_SCHEDULED, 0):
        return False
    return not launches(func.body) or _has_loops_beside(func)


def _has_loops_beside(func: tirx.PrimFunc) -> bool:
    """Whether loops outside of a function's kernels would run on the host."""
    return any(isinstance(stmt, tirx.For) and not launches(stmt) for stmt in top_statements(func))


def choose(
    name: str, func: tirx.PrimFunc, target: Target
) -> tuple[FunctionChoice, Scheduled | None]:
    """Ask the rules in order; the schedule of the first that has one which can be lowered.

    Where a rule that moves memory is modelled to take much longer than moving the parameters, the
    others are asked, too, and the fastest by the model is taken.
    """
    own = without_places(sizes_as_variables(tidy(func)))
    refused, rules = list[str](), list(RULES)
    if launches(func.body):
        refused, rules = ["It launches kernels of its own, and has loops beside them."], [LAST]
    slow: list[tuple[float, str, Scheduled]] = []
    for rule in rules:
        try:
            # dlight knows the forms in which TVM writes its operators.
            found = _applied(rule, func if rule == LAST else own, target)
        except REFUSALS as error:
            refused.append(reason(error))
            continue
        except _MISTAKES as error:
            what = f"{type(error).__name__}: {reason(error)}"
            refused.append(f"Rule {rule} fails by a mistake of tvm_layout_ext, {what}")
            _log.warning("%s: %s", name, refused[-1])
            continue
        if found is None:
            continue
        if rule in MODELLED and (took := _too_long(func, found, target)):
            slow.append((took, rule, found))
            continue
        if not slow or rule != LAST:
            return _chosen(name, rule, found, refused), found
        slow.append((seconds(found.function, target) * _DOUBT, rule, found))
    if slow:
        most = min(took for took, *_ in slow) + _NOISE
        rule, found = next((rule, found) for took, rule, found in slow if took <= most)
        times = ", ".join(f"{took * 1e6:.3g} us by {which}" for took, which, _ in slow)
        return _chosen(name, rule, found, [*refused, f"Modelled: {times}."]), found
    why = " ".join(dict.fromkeys(refused))
    return FunctionChoice(name, "none", f"Nothing schedules it. {why}", tuple(refused)), None


def _applied(rule: str, func: tirx.PrimFunc, target: Target) -> Scheduled | None:
    """What a rule makes of a function, lowered once if it is one of ours, and not checked yet."""
    with decisions.collect():  # What rules try is not what is done.
        found = RULES[rule](func, target)
        if found is not None and rule != LAST:
            func = found.function
            with decisions.collect() as told:
                lowered = lower(func.with_attr("global_symbol", "main"), target=target)
            lowered_once.keep(func, lowered["main"], told)
    return found


def _too_long(func: tirx.PrimFunc, found: Scheduled, target: Target) -> float:
    """Modelled seconds of a schedule, or 0 where others need not be asked."""
    least = least_seconds(func)
    if least is None:
        return 0.0
    took = seconds(found.function, target)
    return took if took > _WORTH * least + _NOISE else 0.0


def _chosen(name: str, rule: str, found: Scheduled, refused: list[str]) -> FunctionChoice:
    why = " ".join(dict.fromkeys(refused))
    text = f"{found.text} schedules it. {why}" if rule == LAST else f"{found.text}."
    if rule in SLOWER and why:
        text += f" No faster rule takes it: {why}"
    return FunctionChoice(name, rule, text, tuple(refused))
