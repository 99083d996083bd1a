"""``DefaultSchedule``: a schedule for each function of a module, without tuning."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from .. import decisions
from ..checks import takes_module
from ..ir.ops import IS_SCHEDULED
from ..ir.walk import launches, top_statements
from ..target import better_than_guess
from ..tune.apply.apply import Best
from ..tune.records.records import Source
from .rules import LAST
from .scheduled.answer import Answer
from .scheduled.answers import answers
from .scheduled.choose import NOBODY

_log = logging.getLogger("tvm_layout_ext")
_MAKER = "DefaultSchedule"


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
        return self.rule in (LAST, NOBODY)


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
        wanted = {
            gv: (func, target)
            for gv, func in mod.functions.items()
            if _is_ours(func) and (target := _target(func, around)) is not None
        }
        found = dict(zip(wanted, answers([*wanted.values()]), strict=True))
        changed = {
            gv: self._scheduled(gv.name_hint, func, found[gv]) if gv in found else func
            for gv, func in mod.functions.items()
        }
        return tvm.IRModule(changed, attrs=mod.attrs, global_infos=mod.global_infos)

    def _scheduled(self, name: str, func: tirx.PrimFunc, answer: Answer) -> tirx.PrimFunc:
        rule, text, refused, mistakes = answer.choice
        for one in mistakes:
            _log.warning("%s: %s", name, one)
        choice = FunctionChoice(name, rule, text, refused)
        self.choices.append(choice)
        decisions.note(_MAKER, name, choice.text, refused=choice.fell_back)
        _log.log(logging.WARNING if choice.fell_back else logging.INFO, "%s: %s", name, choice.text)
        made = answer.function
        return func if made is None else made.with_attr(IS_SCHEDULED, True)


def _target(func: tirx.PrimFunc, around: Target | None) -> Target | None:
    """The CUDA target that a function is scheduled for, if there is one."""
    own = func.attrs.get("target", None)
    target = own if own is not None else around
    if target is None or target.kind.name != "cuda":
        return None
    return better_than_guess(target) or target


def _is_ours(func: Any) -> bool:
    """Whether a function has no schedule, or loops without one beside kernels of its own."""
    if not isinstance(func, tirx.PrimFunc) or func.attrs.get(IS_SCHEDULED, 0):
        return False
    return not launches(func.body) or _has_loops_beside(func)


def _has_loops_beside(func: tirx.PrimFunc) -> bool:
    """Whether loops outside of a function's kernels would run on the host."""
    return any(isinstance(stmt, tirx.For) and not launches(stmt) for stmt in top_statements(func))
