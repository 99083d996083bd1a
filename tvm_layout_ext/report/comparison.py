"""Why a winner wins: its counters beside those of another trial."""

from __future__ import annotations

from rich.table import Table

from ..text import number
from ..tune.model.cost import Counters, modelled_terms
from ..tune.records.log import Record
from ..tune.search.tune import Result
from ..tune.space.operator import Operator
from .tuning import COUNTERS, make_table, score_text

_TERMS = {
    "memory": "global memory sectors",
    "pipe": "shared wavefronts and global requests",
    "arithmetic": "arithmetic",
    "barriers": "barriers",
    "latency": "waves of blocks that wait",
}


def rival(result: Result) -> Record:
    """The trial to compare the winner with: the default, or if that wins the next best."""
    if result.best is None or result.best.trial != result.default.trial:
        return result.default
    others = [one for one in result.ranking if one.trial != result.best.trial]
    return others[0] if others and others[0].score is not None else result.best


def comparison_table(result: Result) -> Table | None:
    """Winner and rival side by side, counter by counter; None unless both have counters."""
    other, best = rival(result), result.best
    if best is None or best.trial == other.trial:
        return None
    rows = counter_rows(other, best)
    if not rows:
        return None
    name = _name(other)
    heads = ("", name, "winner", "ratio")
    gain = f"{best.score / other.score:.2f}" if best.score and other.score else ""
    rows = [["score", score_text(other), score_text(best), gain], *rows]
    named = [list(zip(heads, row, strict=True)) for row in rows]
    return make_table(f"Winner against {name}", named, ("",))


def counter_rows(before: Record | None, after: Record | None) -> list[list[str]]:
    """Each counter of two records, and their ratio; nothing unless both have counters."""
    old, new = (one.conflict_model if one else None for one in (before, after))
    if old is None or new is None:
        return []
    rows = []
    for name in COUNTERS:
        ratio = f"{new[name] / old[name]:.2f}" if old[name] else ""
        rows.append([name.replace("_", " "), number(old[name]), number(new[name]), ratio])
    return rows


def _name(record: Record) -> str:
    return "the default" if record.trial == 0 else f"trial {record.trial}"


def why(result: Result) -> str:
    """Where the winner gains over the default, or over the next best if the default wins."""
    best, other = result.best, rival(result)
    if best is None:
        return "No candidate worked, so there is no winner."
    if other.score is None:
        return f"Trial {best.trial} wins; the default failed ({other.error_class})."
    if best.trial == other.trial:
        return "The default is the winner: no other trial worked."
    lead = "The default wins, no trial was better." if best.trial == 0 else ""
    gain = (
        f"Trial {best.trial} has {score_text(best)} against {score_text(other)} of {_name(other)}, "
        f"{(best.score or 0.0) / other.score:.2f} of it."
    )
    saving = _largest_saving(result.task.operator, other, best)
    return " ".join(part for part in (lead, gain, saving) if part)


def _largest_saving(operator: Operator, other: Record, best: Record) -> str:
    """The modelled term that is smaller by the most, and the conflicts."""
    if other.conflict_model is None or best.conflict_model is None:
        return ""
    models = other.conflict_model, best.conflict_model
    flops = operator.flops(best.workload.shape)
    before, after = (vars(modelled_terms(Counters.from_json(model), flops)) for model in models)
    name = max(_TERMS, key=lambda term: before[term] - after[term])
    if before[name] <= after[name]:
        return "The model sees no saving in any term: what wins is outside the model."
    old, new = (int(model["bank_conflicts"]) for model in models)
    conflicts = f"; bank conflicts {old:,} to {new:,}" if old != new else ""
    return (
        f"By the model it saves the most in {_TERMS[name]}: {before[name]:,.0f} to "
        f"{after[name]:,.0f} modelled cycles of the busiest multiprocessor{conflicts}."
    )
