"""``PlanSync``: what conditions and the bounds of loops rule out needs no barrier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

from tests.simulate import kernels
from tests.transform.barriers import check_minimal, outline

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
#: Two iterations from the write to the read, or from the read to the write.
TWO_LATER = """
for i in range(6):
    if i == {read}:
        B[b, t] = S[63 - t]
    if i == 2:
        S[t] = A[i, t]
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
    ("body", "blocks", "wanted"),
    [
        (OTHER_ROWS.format(end=6), 1, "S= i{ j{ if{ S= } =S"),
        (OTHER_ROWS.format(end=7), 1, "S= | i{ j{ if{ S= } | =S"),
        (FIRST_TIME.format(n=2, end=1), 1, "i{ j{ if{ S= } if{ | =S }"),
        (FIRST_TIME.format(n=2, end=5), 1, "i{ j{ if{ | S= } | =S }"),
        (FIRST_TIME.format(n=16, end=1), 1, "i{ j{ if{ S= } if{ | =S }"),
        (FIRST_TIME.format(n=17, end=1), 1, "i{ | j{ if{ S= } if{ | =S }"),
        (BOUNDS.format(more=2), 1, "S= i{ j{ S= } =S }"),
        (BOUNDS.format(more=3), 1, "S= i{ | j{ S= } | =S }"),
        (BOUNDED.format(end=2), 1, "S= i{ if{ j{ S= } =S"),
        (BOUNDED.format(end=3), 1, "S= | i{ if{ j{ S= } | =S"),
        (TWO_LATER.format(read=4), 1, "i{ if{ | =S } if{ S= }"),
        (TWO_LATER.format(read=0), 1, "i{ if{ =S } if{ | S= }"),
        (BLOCKS.format(more=0), 20, "k{ if{ S= } | if{ =S }"),
        (BLOCKS.format(more=1), 20, "k{ | if{ S= } | if{ =S }"),
        (EITHER.format(read=">="), 4, "if{ S= } if{ =S }"),
        (EITHER.format(read="<"), 4, "if{ S= } if{ | =S }"),
    ],
)
def test_what_conditions_rule_out_needs_no_barrier(body: str, blocks: int, wanted: str) -> None:
    assert outline(kernel(body, blocks)) == wanted


@pytest.mark.parametrize(
    ("body", "blocks"),
    [
        (OTHER_ROWS.format(end=6), 1),
        (OTHER_ROWS.format(end=7), 1),
        (FIRST_TIME.format(n=2, end=1), 1),
        (FIRST_TIME.format(n=16, end=1), 1),
        (BOUNDS.format(more=2), 1),
        (BOUNDS.format(more=3), 1),
        (BOUNDED.format(end=2), 1),
        (BOUNDED.format(end=3), 1),
        (BLOCKS.format(more=0), 20),
        (BLOCKS.format(more=1), 20),
        (EITHER.format(read="<"), 4),
    ],
)
def test_no_barrier_can_go(body: str, blocks: int) -> None:
    check_minimal(kernel(body, blocks), FLOATS, ZEROS)
