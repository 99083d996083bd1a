"""``PlanSync``: accesses under conditions, and in loops whose bounds depend on others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

from tests.programs import kernels
from tests.programs.barriers import marked, outline
from tvm_layout_ext.build import device_program
from tvm_layout_ext.simulate import simulate

FLOATS = kernels.random((64, 64))
ZEROS = np.zeros_like(FLOATS)


def kernel(body: str, blocks: int = 1) -> Any:
    """Blocks b of 64 threads t, with A and B of 64 x 64 and shared S of 256."""
    lines = [
        "@T.prim_func(s_tir=True)",
        "def main(A: T.Buffer((64, 64), 'float32'), B: T.Buffer((64, 64), 'float32')):",
        f"    for b in T.thread_binding({blocks}, thread='blockIdx.x'):",
        "        for t in T.thread_binding(64, thread='threadIdx.x'):",
        "            with T.sblock('all'):",
        "                S = T.sblock_alloc_buffer((256,), 'float32', scope='shared')",
        *(f"                {line}" for line in body.strip("\n").splitlines()),
    ]
    return tvm.script.from_source("\n".join(lines))


#: Rows up to 2 are written: i begins at 3, and no address depends on it.
OTHER_ROWS = """
S[255 - t] = A[0, t]
for i in range(3, 5):
    for j in range(8):
        if i + j < {end}:
            S[j * 64 + t] = A[i + j, t]
B[0, t] = S[255 - t]
"""
#: What is written and read in the first iteration alone, of few and of many.
FIRST_TIME = """
for i in range({n}):
    for j in range(4):
        if i * 4 + j < {end}:
            S[t + j] = A[i, t]
    if i * 4 < {end}:
        B[i, t] = S[63 - t]
"""
#: A loop whose extent depends on another: rows up to 2.
BOUNDS = """
S[255 - t] = A[0, t]
for i in range(4):
    for j in range(i % 2 + {more}):
        S[j * 64 + t] = A[i + j, t]
    B[i, t] = S[255 - t]
"""
#: The same, where the condition bounds the loop around it.
BOUNDED = """
S[127 - t] = A[0, t]
for i in range(4):
    if i < {end}:
        for j in range(i):
            S[j * 64 + t] = A[i + j, t]
B[b, t] = S[127 - t]
"""
#: Rows of 8, 16, 24 or 32 floats, by the block; of four blocks that write alike, some do.
BLOCKS = """
for k in range(2):
    if t < b % 5 * 8 + {more} and b >= 12:
        S[k * (b % 5 * 8) + t] = A[k, t]
if t < b % 5 * 16 and b >= 12:
    B[b, t] = S[b % 5 * 16 - 1 - t]
"""
#: Blocks that write and blocks that read.
EITHER = """
if b < 2:
    S[t] = A[0, t]
if b {read} 2:
    B[b, t] = S[63 - t]
"""


@pytest.mark.parametrize(
    ("body", "blocks"),
    [
        (OTHER_ROWS.format(end=7), 1),
        (FIRST_TIME.format(n=2, end=5), 1),
        (FIRST_TIME.format(n=17, end=1), 1),
        (BOUNDS.format(more=3), 1),
        (BOUNDED.format(end=3), 1),
        (BLOCKS.format(more=1), 20),
        (EITHER.format(read="<"), 4),
    ],
)
def test_accesses_under_conditions_are_kept_apart(body: str, blocks: int) -> None:
    report = simulate(device_program(marked(kernel(body, blocks))), FLOATS, ZEROS, progress=False)
    assert report.hazards == []


HALVES = """
for i in range(4):
    if i >= 2:
        S[i % 2 * 128 + t] = A[i, t]
    if i < 2 and t < 32:
        B[i, t] = S[i % 2 * 128 + t]
"""


def test_what_each_thread_keeps_to_itself_needs_no_barrier() -> None:
    assert "|" not in outline(kernel(HALVES))
