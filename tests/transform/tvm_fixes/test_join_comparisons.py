from __future__ import annotations

from typing import Any

import tvm
from tvm.script import tirx as T

from benchmarks.random_shapes import mapped
from benchmarks.thread_programs import Program
from tests.programs.emitted import cuda_text
from tvm_layout_ext.transform import JoinComparisons


def joined(func: Any) -> str:
    return str(JoinComparisons()(tvm.IRModule({"main": func}))["main"].script())


def argmax() -> Any:
    return mapped(Program("argmax", (588, 32, 64), "int8", (0,)))


def test_comparisons_of_registers_are_joined_by_bits() -> None:
    @T.prim_func(s_tir=True)
    def both(B: T.Buffer((4,), "int32")) -> None:
        T.func_attr({"layout_ext.annotated": 1})
        r = T.alloc_buffer((2,), "int32", scope="local")
        B[0] = T.Select(r[0] < r[1] or (r[0] == r[1] and r[1] < 3), r[0], r[1])
        B[1] = T.if_then_else(r[0] < r[1] and r[1] < 3, r[0], 5)

    text = joined(both)
    assert " or " not in text
    assert " and " not in text
    assert text.count("bitwise_and") + text.count(" & ") == 2


def test_what_keeps_a_load_from_being_done_stays() -> None:
    @T.prim_func(s_tir=True)
    def guarded(A: T.Buffer((4,), "int32"), B: T.Buffer((4,), "int32"), n: T.int32) -> None:
        T.func_attr({"layout_ext.annotated": 1})
        B[0] = T.Select(n < 4 and A[n] < 3, 1, 2)
        B[1] = T.if_then_else(n < 4 and n >= 0, A[n], 2)

    assert joined(guarded) == str(guarded.script())


def test_an_argmax_has_no_branch_for_an_element() -> None:
    text = cuda_text(argmax())
    chosen = [line for line in text.splitlines() if "if (" in line and "local" in line]
    assert chosen
    assert not any("||" in line or "&&" in line for line in chosen)
