from __future__ import annotations

from typing import Any

import numpy as np
from tvm import s_tir
from tvm.script import tirx as T

from tests.programs.emitted import cuda_text
from tests.programs.running import gives


@T.prim_func(s_tir=True)
def joined(a: T.handle, B: T.Buffer((3, 8), "float16"), c: T.handle) -> None:
    n = T.int64()
    A = T.match_buffer(a, (n, 8), "float16")
    C = T.match_buffer(c, (n + 3, 8), "float16")
    for i, j in T.grid(n + 3, 8):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.if_then_else(n <= vi, B[vi - n, vj], A[vi, vj])


def mapped() -> Any:
    sch = s_tir.Schedule(joined)
    sch.auto_coalesce("C")
    return sch


def test_rows_behind_a_symbolic_number_of_others_are_loaded_at_once() -> None:
    source = cuda_text(mapped()).replace(" ", "")
    assert [source.count(f"*(uint4*)({name}_ptr") for name in "ABC"] == [1, 1, 1]
    a, b = (np.arange(8 * rows).reshape(rows, 8).astype("float16") for rows in (5, 3))
    gives(mapped(), a, b, None, C=np.concatenate([a, b]))
