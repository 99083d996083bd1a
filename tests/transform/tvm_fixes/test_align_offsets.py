from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.script import tirx as T

from tests.programs.emitted import cuda_text
from tests.programs.running import gives
from tvm_layout_ext.errors import SimulationError
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.transform import AlignOffsets


def test_an_offset_without_a_factor_stays() -> None:
    @T.prim_func(s_tir=True)
    def free(a: T.handle) -> None:
        T.func_attr({"layout_ext.annotated": 1})
        o = T.int32()
        A = T.match_buffer(a, (64,), "float32", elem_offset=o)
        for i in range(32):
            A[i + o] = T.float32(0)

    mod = tvm.IRModule({"main": free})
    assert AlignOffsets()(mod)["main"].same_as(mod["main"])


@T.prim_func(s_tir=True)
def copy(a: T.handle, b: T.handle) -> None:
    o = T.int64()
    A = T.match_buffer(a, (1024,), "float32", elem_offset=o, offset_factor=4)
    B = T.match_buffer(b, (1024,), "float32")
    for i in T.serial(1024):
        with T.sblock("B"):
            vi = T.axis.spatial(1024, i)
            B[vi] = A[vi]


def mapped() -> Any:
    sch = s_tir.Schedule(copy)
    sch.auto_coalesce("B")
    return sch


def test_cuda_loads_the_vector_at_once() -> None:
    source = cuda_text(mapped()).replace(" ", "")
    assert "*(float4*)(B" in source
    assert source.count("*(float4*)(A") == 1


def test_an_offset_that_is_no_multiple_is_found() -> None:
    whole = np.arange(1100).astype("float32")
    gives(mapped(), whole[8:1032], None, B=whole[8:1032])
    with pytest.raises(SimulationError, match=r"A begins 6 elements into its .* multiples of 4"):
        simulate(mapped(), whole[6:1030], None)
