"""FillPaddedRows: the last vector of a ragged shared row goes whole into the row's padding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm.script import tirx as T

from tests.programs.products import scheduled, simulated
from tests.schedule.primitives.test_use_tensor_core import TYPES
from tvm_layout_ext import transform
from tvm_layout_ext.ir.annotations import MARK


def rows(
    columns: int = 7,
    stride: int = 12,
    scope: str = "shared",
    start: int = 0,
    source: str = "local",
    limit: int | None = None,
    marked: bool = True,
) -> Any:
    """8 rows; lanes store vectors of 2 from registers, then read the row element by element."""
    end = columns if limit is None else limit

    @T.prim_func(check_well_formed=False)
    def main(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, columns), "float32")) -> None:
        T.func_attr({"global_symbol": "main"})
        for tx in T.thread_binding(32, "threadIdx.x"):
            with T.sblock("thread"):
                S = T.alloc_buffer((8, columns), "float32", strides=(stride, 1), scope=scope)
                R = T.alloc_buffer((16,), "float32", scope=source)
                for v in range(8):
                    R[v] = A[tx // 4, v]
                for v in T.vectorized(2):
                    with T.sblock("store"):
                        T.where(tx % 4 * 2 + v + start < end)
                        S[tx // 4, tx % 4 * 2 + v + start] = R[tx % 4 * 2 + v]
                for v in range(2):
                    with T.sblock("write"):
                        T.where(tx % 4 * 2 + v < columns)
                        B[tx // 4, tx % 4 * 2 + v] = S[tx // 4, tx % 4 * 2 + v]

    return main.with_attr(MARK, 1) if marked else main


def after(func: Any) -> Any:
    return transform.FillPaddedRows()(tvm.IRModule({"main": func}))["main"]


@pytest.mark.parametrize(
    ("columns", "left"), [(7, None), (5, "T.where(tx % 4 < 3)"), (1, "T.where(tx % 4 < 1)")]
)
def test_only_the_condition_changes_and_loses_the_vectors_variable(
    columns: int, left: str | None
) -> None:
    before = rows(columns).script().splitlines()
    guards = [number for number, line in enumerate(before) if "T.where" in line]
    assert before[guards[0]].strip() == f"T.where(tx % 4 * 2 + v < {columns})"
    # The vectors of 4 lanes begin at 0, 2, 4 and 6, all of them in a row of 7.
    indent = before[guards[0]][: -len(before[guards[0]].lstrip())]
    before[guards[0] : guards[0] + 1] = [] if left is None else [indent + left]
    assert after(rows(columns)).script().splitlines() == before


@pytest.mark.parametrize(
    "changes",
    [
        {"stride": 7},  # no room
        {"scope": "local"},
        {"start": 1},  # vectors that do not start at multiples of their length
        {"source": "global"},
        {"limit": 5},  # something else than the end of the row
        {"marked": False},
    ],
    ids=str,
)
def test_what_is_left_alone(changes: dict[str, Any]) -> None:
    func = rows(**changes)
    assert tvm_ffi.structural_equal(after(func), func)


@pytest.mark.parametrize("n", [1, 7])
def test_ragged_sums_of_a_product_are_stored_whole(n: int) -> None:
    product = replace(TYPES["tf32"], shape=(32, n, 8))
    report = simulated(product, scheduled(product, tile=(32, 32, 8), warps=(1, 1)))
    assert not report.hazards
    shared = [x for x in report.accesses if x.scope == "shared.dyn"]
    last = max(at for at, x in enumerate(shared) if x.kind == "ldmatrix")
    stores = [x for x in shared[last:] if x.kind == "store"]
    assert [x.vector_bytes for x in stores] == [8] * 4
    assert sum(x.bank_conflicts for x in stores) == 0
