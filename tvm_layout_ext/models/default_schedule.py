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
from ..errors import LayoutExtError
from ..ir.diagnostics import reason
from ..ir.ops import IS_SCHEDULED
from ..target import better_than_guess
from ..tune.apply.apply import Best
from ..tune.records.records import Source
from .rule import Scheduled
from .rules import LAST, RULES

_log = logging.getLogger("tvm_layout_ext")
_MAKER = "DefaultSchedule"
#: What primitives, and TVM below them, raise on a program that they do not take.
_REFUSALS = (LayoutExtError, RuntimeError, ValueError, TypeError, IndexError, KeyError)


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
    return isinstance(func, tirx.PrimFunc) and not func.attrs.get(IS_SCHEDULED, 0)


def choose(
    name: str, func: tirx.PrimFunc, target: Target
) -> tuple[FunctionChoice, Scheduled | None]:
    """Ask the rules in order; the schedule of the first that has one which can be lowered."""
    refused: list[str] = []
    for rule, apply in RULES.items():
        try:
            with decisions.collect():  # What rules try is not what is done.
                found = apply(func, target)
                if found is None:
                    continue
                if rule != LAST:
                    lower(found.function.with_attr("global_symbol", "main"), target=target)
        except _REFUSALS as error:
            refused.append(reason(error))
            continue
        why = " ".join(dict.fromkeys(refused))
        text = f"{found.text} schedules it. {why}" if rule == LAST else f"{found.text}."
        return FunctionChoice(name, rule, text, tuple(refused)), found
    why = " ".join(dict.fromkeys(refused))
    return FunctionChoice(name, "none", f"Nothing schedules it. {why}", tuple(refused)), None
