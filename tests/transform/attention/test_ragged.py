"""Attention of sequences one behind the other: any lengths, nothing of a neighbour."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_layout_ext as tlx
from tests.programs import warpgroups as w
from tvm_layout_ext.schedules import ragged_attention, ragged_causal
from tvm_layout_ext.tune.space.operator import Operator

#: Heads of Q and of K, columns, rows of each sequence in Q and in K, tiles.
CASES = {
    "around a tile": (1, 1, 64, (0, 63, 64, 65, 1), (0, 65, 64, 63, 129), (64, 1)),
    "shared heads": (3, 1, 64, (5, 0, 33, 17), (5, 9, 0, 40), (64, 2)),
    "two warpgroups": (2, 2, 128, (130, 20), (100, 150), (128, 2)),
}


def drawn(case: str, operator: Operator, spoiled: int | None = None) -> tuple[float, list[str]]:
    """How far results are off, without those of a sequence whose keys are no numbers; hazards."""
    heads, groups, depth, queries, keys, (tile, consumers) = CASES[case]
    shape = (len(queries), heads, groups, sum(queries), sum(keys), depth)
    arrays = operator.inputs(shape, "float16", np.random.default_rng(len(queries)))
    arrays[3:] = (np.cumsum([0, *n]).astype("int32") for n in (queries, keys))
    want = operator.reference(*arrays).astype(float)
    kept = np.ones(len(want), bool)
    if spoiled is not None:
        a, b = arrays[4][spoiled : spoiled + 2]
        arrays[1][a:b] = arrays[2][a:b] = float("nan")
        a, b = arrays[3][spoiled : spoiled + 2]
        kept[a:b] = False
    sch = operator.schedule(
        operator.compute(shape, "float16"), {"keys": tile, "consumers": consumers}
    )
    report = tlx.simulate(sch, *arrays, target=w.SM90A, progress=False)
    (found,) = report.outputs.values()
    off = abs(found.astype(float) - want)[kept].max(initial=0)
    return float(np.nan_to_num(off, nan=np.inf)), report.hazards


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("causal", [False, True])
def test_each_sequence_is_that_of_float64(case: str, causal: bool) -> None:
    off, hazards = drawn(case, (ragged_causal if causal else ragged_attention).OPERATOR)
    assert hazards == []
    assert off < 2e-3


def test_nothing_of_the_next_sequence_comes_into_a_result() -> None:
    """Its rows lie behind the last key in the same tile."""
    off, hazards = drawn("around a tile", ragged_attention.OPERATOR, spoiled=2)
    assert hazards == []
    assert off < 2e-3
