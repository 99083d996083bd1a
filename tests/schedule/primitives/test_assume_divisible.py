"""Promises about sizes, strides and addresses: where they travel, what they give, who checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, tirx
from tvm import te as stock_te
from tvm.script import tirx as T

import tvm_layout_ext as tlx
from tests.programs.emitted import cuda_text
from tests.programs.mapped import share
from tests.programs.running import gives
from tvm_layout_ext import te
from tvm_layout_ext.analysis.assumptions import read_assumptions
from tvm_layout_ext.errors import LayoutError, SimulationError


def doubled(n: Any) -> tuple[te.Tensor, te.Tensor]:
    a = te.placeholder((n,), "float32", name="A")
    return a, te.compute((n,), lambda i: a[i] * 2.0, name="B")


def twice(promise: Callable[..., Any]) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def main(a: T.handle, b: T.handle, n: T.int32) -> None:
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        promise(n)
        for i in range(n):
            with T.sblock("B"):
                v = T.axis.spatial(n, i)
                B[v] = A[v] * T.float32(2.0)

    return main


def coalesced(func: Any) -> s_tir.Schedule:
    sch = s_tir.Schedule(func)
    sch.auto_coalesce(sch.get_sblock("B"))
    return sch


def cuda(mod: Any) -> str:
    return cuda_text(mod).rpartition("__launch_bounds__")[2]


def is_float4_alone(source: str) -> bool:
    """One vector load and store, and no loop over single elements beside them."""
    return source.count("*(float4*)") == 2 and "for (" not in source and source.count("] =") == 0


def test_without_a_promise_a_vector_needs_its_ragged_form() -> None:
    source = cuda(coalesced(twice(lambda n: tlx.assume_divisible(n, 1))).mod)
    assert "for (" in source


def test_te_size_gives_vectors_without_a_ragged_form() -> None:
    n = te.var("n")
    tlx.assume_divisible(n, 4)
    a, b = doubled(n)
    s = tlx.create_schedule(b.op)
    s[b].auto_coalesce()
    assert is_float4_alone(cuda(tlx.lower(s, [a, b])))


@pytest.mark.parametrize("divisor", [4, 16, 12])
def test_te_function_carries_the_promise(divisor: int) -> None:
    n = te.var("n")
    tlx.assume_divisible(n, divisor)
    func = te.create_prim_func(list(doubled(n)))
    assert str(read_assumptions(func).conditions) == f"(n % {divisor} == 0,)"
    assert is_float4_alone(cuda(coalesced(func).mod))


def test_script_may_call_it_or_write_assume() -> None:
    called = twice(lambda n: tlx.assume_divisible(n, 16))
    written = twice(lambda n: T.evaluate(T.assume(n % 16 == 0)))
    tvm.ir.assert_structural_equal(called, written)
    assert is_float4_alone(cuda(coalesced(written).mod))


def test_multiple_of_the_whole_block_leaves_no_guard() -> None:
    source = cuda(coalesced(twice(lambda n: tlx.assume_divisible(n, 1024))).mod)
    assert is_float4_alone(source)
    assert "if (" not in source


def test_other_functions_of_te_do_not_get_it() -> None:
    n, m = te.var("n"), te.var("m")
    tlx.assume_divisible(n, 16)
    assert read_assumptions(te.create_prim_func(list(doubled(m)))).conditions == ()


def test_survives_traces_and_saving() -> None:
    n = te.var("n")
    tlx.assume_divisible(n, 1024)
    func = te.create_prim_func(list(doubled(n)))
    sch = coalesced(func)
    loaded = tvm.ir.load_json(tvm.ir.save_json(func))
    again = s_tir.Schedule(loaded)
    s_tir.schedule.Trace.apply_json_to_schedule(sch.trace.as_json(), again)
    tvm.ir.assert_structural_equal(again.mod, sch.mod)
    assert "T.where" not in str(again.mod)
    assert str(read_assumptions(again.mod["main"]).conditions) == "(n % 1024 == 0,)"


def test_printed_functions_parse_with_it() -> None:
    func = twice(lambda n: tlx.assume_divisible(n, 16))
    tvm.ir.assert_structural_equal(tvm.script.from_source(func.script()), func)


@pytest.mark.parametrize(("n", "divisor"), [(64, 4), (1000, 8), (2048, 1024), (36, 12)])
def test_values_are_right(n: int, divisor: int) -> None:
    x = np.arange(n, dtype="float32")
    func = twice(lambda n: tlx.assume_divisible(n, divisor))
    gives(coalesced(func).mod, x, None, n, B=2 * x)


def test_broken_promise_is_refused_before_a_kernel_runs() -> None:
    x = np.arange(63, dtype="float32")
    func = twice(lambda n: tlx.assume_divisible(n, 16))
    with pytest.raises(SimulationError, match="n must be a multiple of 16, as twice assumes"):
        tlx.simulate(coalesced(func.with_attr("global_symbol", "twice")).mod, x, None, 63)


def test_other_conditions_are_checked_too() -> None:
    x = np.arange(8, dtype="float32")
    func = twice(lambda n: T.evaluate(T.assume(tirx.all(n % 4 == 0, n > 8))))
    with pytest.raises(SimulationError, match="must hold"):
        tlx.simulate(coalesced(func).mod, x, None, 8)


def test_simulator_checks_assumptions_of_stock_functions() -> None:
    func = twice(lambda n: tlx.assume_divisible(n, 16))
    sch = s_tir.Schedule(func)
    share(sch, 32)
    with pytest.raises(SimulationError, match="n % 16 == 0, which does not hold"):
        tlx.simulate(sch.mod, np.zeros(40, "float32"), None, 40)


def buffers(aligned_to: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def main(a: T.handle, b: T.handle) -> None:
        off = T.int32()
        A = T.match_buffer(a, (4096,), "float32", elem_offset=off, align=4, offset_factor=1)
        B = T.match_buffer(b, (4096,), "float32", align=4)
        tlx.assume_divisible(A, aligned_to)
        tlx.assume_divisible(B, aligned_to)
        for i in range(4096):
            with T.sblock("B"):
                v = T.axis.spatial(4096, i)
                B[v] = A[v] * T.float32(2.0)

    return main


@pytest.mark.parametrize(("bytes_", "lanes"), [(4, 1), (8, 2), (16, 4), (128, 4)])
def test_buffers_count_bytes(bytes_: int, lanes: int) -> None:
    sch = coalesced(buffers(bytes_))
    innermost = sch.get(sch.get_loops(sch.get_sblock("B"))[-1])
    vector = innermost.kind == tirx.ForKind.VECTORIZED
    assert (int(innermost.extent) if vector else 1) == lanes


def test_symbolic_offsets_are_checked_on_the_host() -> None:
    lowered = str(tlx.lower(coalesced(buffers(16)).mod))
    assert "assert A.elem_offset % 4 == 0" in lowered
    assert "reinterpret" not in lowered


def test_a_single_address_leaves_nothing_behind() -> None:
    a, b = doubled(4096)
    tlx.assume_divisible(a, 32)
    tlx.assume_divisible(b, 32)
    x = np.arange(4096, dtype="float32")
    gives(coalesced(te.create_prim_func([a, b])).mod, x, None, B=2 * x)


def test_te_tensors_count_bytes() -> None:
    a, b = doubled(64)
    tlx.assume_divisible(a, 32)
    func = te.create_prim_func([a, b])
    assert read_assumptions(func).alignment(func.params[0]) == 32
    assert read_assumptions(func).alignment(func.params[1]) == 1


def test_functions_with_addresses_always_lower() -> None:
    """TVM 0.27 refuses an address in an expression; the promise must not cost the function."""
    sch = s_tir.Schedule(buffers(16))
    share(sch, 128)
    assert "*(float" not in cuda(sch.mod)


def test_late_assumptions_do_not_count() -> None:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((64,), "float32"), n: T.int32) -> None:
        for i in range(n):
            A[i] = T.float32(0)
        T.assume(n % 16 == 0)

    assert read_assumptions(main).conditions == ()


def test_what_host_code_cannot_check_stays() -> None:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((64,), "int32"), n: T.int32) -> None:
        T.func_attr({"layout_ext.annotated": 1})
        T.assume(A[0] > 0)
        T.assume(n % 16 == 0)
        for i in T.thread_binding(64, thread="threadIdx.x"):
            A[i] = n

    assert str(read_assumptions(main).conditions) == "(n % 16 == 0,)"
    after = tlx.transform.CheckAssumptions()(tvm.IRModule({"main": main}))["main"]
    assert "T.assume(A[0] > 0)" in str(after)
    assert "assert n % 16 == 0" in str(after)


@pytest.mark.parametrize(
    ("value", "divisor", "message"),
    [
        (te.var("n"), 0, "at least 1, not 0"),
        (te.var("n"), True, "at least 1, not True"),
        (te.var("n"), 2.0, "at least 1, not 2.0"),
        (te.var("n"), 1 << 40, "takes divisors below"),
        (te.var("x", "float32"), 4, "takes an integer variable"),
        (te.var("n") * 2, 4, r"takes an integer variable, a buffer or a tensor, not n \* 2"),
        (7, 7, "takes an integer variable"),
        (tirx.decl_buffer((4,), "float32"), 12, "12 bytes is none"),
        (te.placeholder((4,), "float32"), 12, "12 bytes is none"),
    ],
)
def test_refusals(value: Any, divisor: Any, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        tlx.assume_divisible(value, divisor)


def test_tensors_of_te_are_refused_in_script() -> None:
    a = stock_te.placeholder((4,), "float32", name="A")
    with pytest.raises(Exception, match="tensor of TE"):
        twice(lambda n: tlx.assume_divisible(a, 16))
