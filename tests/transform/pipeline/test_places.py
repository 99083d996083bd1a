"""Copies whose regions say more than they fill: refused where versions would tell, else right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_layout_ext as tlx
from tests.programs.pipelines import ZEROS, block, copy, loop, params, program, rows
from tests.programs.running import gives

STEPS = 6
HEAD = f"{params(STEPS)}, I: T.Buffer(({STEPS},), 'int32')"
ROWS = np.array([2, 0, 3, 1, 0, 2], "int32")


def moving(at: str, use: str, stages: int) -> Any:
    """Fill ``S[at]``, of which the region says the whole buffer, and read it."""
    whole = "S[0:4, 0:32]" if "," in at else "S[0:32]"
    one = copy("S", "A[k, t]", stages, at=at)
    one = one.replace(f"T.writes(S[{at}])", f"T.writes({whole})")
    one = one.replace("T.reads(A[k, t])", f"T.reads(A[k, t], I[0:{STEPS}])")
    reader = block("use", f"B[t], {whole}, I[0:{STEPS}]", "B[t]", f"B[t] = B[t] + {use}")
    shape = "4, 32" if "," in at else "32,"
    alloc = f"S = T.sblock_alloc_buffer(({shape}), scope='shared')"
    return program(HEAD, [alloc, loop(f"for k in range({STEPS})", one, reader)], ())


@pytest.mark.parametrize(
    ("at", "use"),
    [
        ("I[k], t", "S[0, 31 - t] + S[1, 31 - t]"),
        ("k % 4, t", "S[0, 31 - t] + S[1, 31 - t]"),
        # Every iteration fills the row whole, which is not looked into.
        ("(k + t) % 32", "S[31 - t]"),
    ],
)
def test_what_other_iterations_filled_is_not_in_this_version(at: str, use: str) -> None:
    tlx.lower(moving(at, use, 1))
    with pytest.raises(tlx.ScheduleError, match=r"fills other .* of loop k, and block use may"):
        tlx.lower(moving(at, use, 2))


@pytest.mark.parametrize("stages", [1, 3])
def test_a_loaded_row_that_is_read_again_is_pipelined(stages: int) -> None:
    func = moving("I[k], t", "S[I[k], 31 - t]", stages)
    a = rows(STEPS)
    gives(func, a, ZEROS, ROWS, B=a.sum(0)[::-1])
