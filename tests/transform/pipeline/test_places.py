"""Copies whose regions say more than they fill: refused where versions would tell, else right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_layout_ext as tlx
from tests.programs.pipelines import LANES, block, copy, loop, program
from tvm_layout_ext.simulate import simulate

STEPS = 6
HEAD = (
    f"A: T.Buffer(({STEPS}, {LANES}), 'float32'), B: T.Buffer(({LANES},), 'float32'), "
    f"I: T.Buffer(({STEPS},), 'int32')"
)
ROWS = np.array([2, 0, 3, 1, 0, 2], "int32")
ROW = "B[t] = B[t] + S[31 - t]"
ALL = "B[t] = B[t] + S[0, 31 - t] + S[1, 31 - t] + S[2, 31 - t] + S[3, 31 - t]"
WHOLE_ROW, WHOLE = "S[0:32]", "S[0:4, 0:32]"


def moving(at: str, use: str, stages: int, *, fill: str = "if True", since: int = 0) -> Any:
    """Fill ``S[at]``, of which the region says the whole buffer, and read it from a step on."""
    two = "," in at
    whole = WHOLE if two else WHOLE_ROW
    one = copy("S", "A[k, t]", stages, at=at)
    one = one.replace(f"T.writes(S[{at}])", f"T.writes({whole})")
    one = one.replace("T.reads(A[k, t])", f"T.reads(A[k, t], I[0:{STEPS}])")
    reader = block("use", f"B[t], {whole}, I[0:{STEPS}]", "B[t]", use)
    body = [
        one if fill == "if True" else loop(fill, one),
        reader if not since else loop(f"if k >= {since}", reader),
    ]
    alloc = f"S = T.sblock_alloc_buffer(({'4, 32' if two else '32,'}), scope='shared')"
    return program(HEAD, [alloc, loop(f"for k in range({STEPS})", *body)], ())


def expected(at: str, rows: bool, lanes: int, since: int, a: np.ndarray) -> np.ndarray:
    """One buffer, filled over and over."""
    held = np.zeros((4, LANES) if rows else LANES, "float32")
    out = np.zeros(LANES, "float32")
    for k in range(STEPS):
        for t in range(lanes):
            held[eval(at, {"k": k, "t": t, "I": ROWS})] = a[k, t]
        if k >= since:
            out += held[..., ::-1].sum(0) if rows else held[::-1]
    return out


CASES = [
    ("I[k], t", ALL, "if True", 3),
    ("(k * 16 + t) % 32", ROW, "if t < 16", 1),
    ("k % 4, t", ALL, "if True", 3),
]


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize(("at", "use", "fill", "since"), CASES)
def test_what_other_iterations_filled_is_not_in_this_version(
    at: str, use: str, fill: str, since: int, stages: int
) -> None:
    func = moving(at, use, stages, fill=fill, since=since)
    if stages > 1:
        with pytest.raises(tlx.ScheduleError, match=r"fills other .* may read more") as said:
            tlx.lower(func)
        assert "of loop k, and block use may read" in str(said.value)
        return
    a = np.random.default_rng(0).integers(-8, 8, (STEPS, LANES)).astype("float32")
    report = simulate(func, a, np.zeros(LANES, "float32"), ROWS)
    lanes = LANES if fill == "if True" else 16
    np.testing.assert_array_equal(report.outputs["B"], expected(at, use == ALL, lanes, since, a))
    assert not report.hazards


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_loaded_row_that_is_read_again_is_pipelined(stages: int) -> None:
    func = moving("I[k], t", "B[t] = B[t] + S[I[k], 31 - t]", stages)
    a = np.random.default_rng(1).integers(-8, 8, (STEPS, LANES)).astype("float32")
    report = simulate(func, a, np.zeros(LANES, "float32"), ROWS)
    np.testing.assert_array_equal(report.outputs["B"], a.sum(0)[::-1])
    assert not report.hazards


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_row_that_is_filled_whole_from_any_place_is_pipelined(stages: int) -> None:
    func = moving("(k + t) % 32", ROW, stages)
    a = np.random.default_rng(2).integers(-8, 8, (STEPS, LANES)).astype("float32")
    report = simulate(func, a, np.zeros(LANES, "float32"), ROWS)
    wanted = expected("(k + t) % 32", rows=False, lanes=LANES, since=0, a=a)
    np.testing.assert_array_equal(report.outputs["B"], wanted)
    assert not report.hazards
