"""``choose``: the rule that schedules a function."""

from __future__ import annotations

from typing import NamedTuple

from tvm import tirx
from tvm.target import Target

from ... import decisions
from ...build import lower
from ...ir import lowered_once
from ...ir.diagnostics import reason
from ...ir.tidy import tidy
from ...ir.walk import launches
from ..any_size.pixels_as_rows import without_places
from ..any_size.sizes_as_variables import sizes_as_variables
from ..modelled import least_seconds, seconds
from ..rule import REFUSALS, Scheduled
from ..rules import LAST, MODELLED, RULES, SLOWER

#: The rule where nobody schedules a function.
NOBODY = "none"
#: What only a mistake of this package raises: others are asked, and the choice says so.
_MISTAKES = (AssertionError, AttributeError, IndexError, KeyError, NameError, TypeError)
#: How many times the least time a schedule may take before others are asked.
_WORTH = 1.5
#: What a model that was fitted to our kernels may be wrong about dlight's.
_DOUBT = 1.25
#: Seconds by which two short kernels may differ from one measurement to the next.
_NOISE = 1e-6


class RuleChoice(NamedTuple):
    """The rule that schedules a function, ``none`` if nobody does, and why in a sentence.

    ``refused`` has the sentences of the rules that were asked before, and ``mistakes`` those of
    them that tell a mistake of this package.
    """

    rule: str
    text: str
    refused: tuple[str, ...]
    mistakes: tuple[str, ...]


def choose(func: tirx.PrimFunc, target: Target) -> tuple[RuleChoice, Scheduled | None]:
    """Ask the rules in order; the schedule of the first that has one which can be lowered.

    Where a rule that moves memory is modelled to take much longer than moving the parameters, the
    others are asked, too, and the fastest by the model is taken.
    """
    own = without_places(sizes_as_variables(tidy(func)))
    refused, mistakes, rules = list[str](), list[str](), list(RULES)
    if launches(func.body):
        refused.append("It launches kernels of its own, and has loops beside them.")
        rules = [LAST]
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
            mistakes.append(f"Rule {rule} fails by a mistake of tvm_layout_ext, {what}")
            refused.append(mistakes[-1])
            continue
        if found is None:
            continue
        if rule in MODELLED and (took := _too_long(func, found, target)):
            slow.append((took, rule, found))
            continue
        if not slow or rule != LAST:
            return _chosen(rule, found, refused, mistakes), found
        slow.append((seconds(found.function, target) * _DOUBT, rule, found))
    if slow:
        most = min(took for took, *_ in slow) + _NOISE
        rule, found = next((rule, found) for took, rule, found in slow if took <= most)
        times = ", ".join(f"{took * 1e6:.3g} us by {which}" for took, which, _ in slow)
        return _chosen(rule, found, [*refused, f"Modelled: {times}."], mistakes), found
    text = f"Nothing schedules it. {_joined(refused)}"
    return RuleChoice(NOBODY, text, tuple(refused), tuple(mistakes)), None


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


def _chosen(rule: str, found: Scheduled, refused: list[str], mistakes: list[str]) -> RuleChoice:
    why = _joined(refused)
    text = f"{found.text} schedules it. {why}" if rule == LAST else f"{found.text}."
    if rule in SLOWER and why:
        text += f" No faster rule takes it: {why}"
    return RuleChoice(rule, text, tuple(refused), tuple(mistakes))


def _joined(sentences: list[str]) -> str:
    return " ".join(dict.fromkeys(sentences))
