"""Staged blocks of 8-byte elements, or of elements of two sizes: values and bank conflicts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te

from tests.programs.running import gives
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.simulate.report import Report


@dataclass(frozen=True)
class Block:
    """The sum of some loads, each with some of the store's indices in an order of its own."""

    shape: tuple[int, ...]
    loads: tuple[tuple[tuple[int, ...], str], ...]
    dtype: str

    def __str__(self) -> str:
        loads = "+".join(f"{''.join(map(str, order))}.{dtype}" for order, dtype in self.loads)
        return f"{'x'.join(map(str, self.shape))}-{loads}-{self.dtype}"

    def schedule(self) -> Any:
        held = [
            te.placeholder([self.shape[d] for d in order], dtype, f"A{at}")
            for at, (order, dtype) in enumerate(self.loads)
        ]

        def body(*at: Any) -> Any:
            parts = [
                one[tuple(at[d] for d in order)].astype(self.dtype)
                for one, (order, _) in zip(held, self.loads, strict=True)
            ]
            return sum(parts[1:], parts[0])

        out = te.compute(self.shape, body, "B")
        return s_tir.Schedule(te.create_prim_func([*held, out]))

    def values(self) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        return [
            rng.integers(-20, 20, [self.shape[d] for d in order]).astype(dtype)
            for order, dtype in self.loads
        ]

    def expected(self, values: Sequence[np.ndarray]) -> np.ndarray:
        total = np.zeros(self.shape, self.dtype)
        for value, (order, _) in zip(values, self.loads, strict=True):
            sizes = [n if d in order else 1 for d, n in enumerate(self.shape)]
            total += value.transpose(np.argsort(order)).reshape(sizes).astype(self.dtype)
        return total


def run(block: Block, stage: str = "shared") -> tuple[str, Report]:
    """Map a block, run it and compare it with NumPy."""
    sch = block.schedule()
    path = sch.auto_coalesce("B", stage=stage).path
    values = block.values()
    report = gives(sch, *values, None, B=block.expected(values))
    return path, report


F64, I64, F32, F16, I8 = "float64", "int64", "float32", "float16", "int8"


def of(shape: tuple[int, ...], *loads: tuple[str, str], to: str) -> Block:
    return Block(shape, tuple((tuple(map(int, order)), t) for order, t in loads), to)


@pytest.mark.parametrize(
    ("block", "stage"),
    [
        (of((129, 127), ("01", F64), to=I8), "shared"),
        (of((65, 8, 5), ("120", I64), ("012", I64), to=I8), "shared"),
        (of((2, 7, 32), ("210", F32), ("012", F64), to=F16), "shared"),
        (of((16, 31), ("10", I8), ("10", I64), to=I64), "auto"),
    ],
    ids=str,
)
def test_what_a_thread_reads_of_a_tile_may_be_longer_than_16_bytes(
    block: Block, stage: str
) -> None:
    # Planned as one vector of up to 128 bytes, these ended in "cannot be moved at once".
    path, report = run(block, stage)
    assert (path, report.hazards) == ("staged", [])


def blocks() -> Iterator[Block]:
    """Two loads each, of 8 bytes or one of less, some without a dim of the store's."""
    sizes = (1, 2, 3, 5, 7, 8, 9, 16, 31, 33, 64, 65, 66, 100, 127, 129)
    rng = random.Random(0)
    while True:
        rank = rng.choice((2, 3, 3, 4, 5))
        shape = tuple(rng.choice(sizes) for _ in range(rank))
        if not 30 <= prod(shape) <= 6000:
            continue
        loads = []
        for _ in range(2):
            order = rng.sample(range(rank), rank)
            del order[rank - (rng.random() < 0.15) :]
            loads.append((tuple(order), rng.choice((F64, F64, I64, F32, I8))))
        loads[0] = (loads[0][0], rng.choice((F64, I64)))
        yield Block(shape, tuple(loads), rng.choice((F64, I64)))


BLOCKS = [block for block, _ in zip(blocks(), range(30), strict=False)]


@pytest.mark.matrix
@pytest.mark.parametrize("stage", ["auto", "shared"])
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_random_blocks_of_two_loads_of_doubles_are_numpys(block: Block, stage: str) -> None:
    try:
        _, report = run(block, stage)
    except ScheduleError as error:
        # Two tiles may be too many; nobody asked for them under "auto".
        assert stage == "shared"
        assert "bytes of shared memory of 49,152" in str(error)  # noqa: PT017
        return
    assert report.hazards == []
