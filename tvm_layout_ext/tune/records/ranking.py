"""The order of trials, best first, in which differences that are only noise do not count."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .log import Record

#: Medians this close, relative to the best, are not told apart. One and the same transpose took
#: 530.6 us in one process and 533.9 us in another (H200; ``tuning_logs``, ``benchmarks/results``).
NOISE = 0.005


def best_first(records: Iterable[Record]) -> list[Record]:
    """Order records: the leaders, the other trials that worked by score, then those that failed.

    Leaders are the measured trials within :data:`NOISE` of the fastest; among them the modelled
    cost decides, so that a kernel with bank conflicts does not win by a fluke. Modelled trials
    have no noise.
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
