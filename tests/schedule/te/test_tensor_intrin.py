"""``decl_tensor_intrin`` in both styles, and ``tensorize`` where it fits and where it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

from tests.programs.host import assert_computes, ints
from tests.programs.stages import elementwise, product
from tvm_layout_ext import ScheduleError, te


def _copied(width: int = 16) -> Any:
    X = te.placeholder((width,), name="X")
    return te.compute((width,), lambda i: X[i], name="Y")


def _row(width: int = 16) -> Any:
    """An intrinsic that copies a row by vectors of four."""

    def copy(ins: list[Any], outs: list[Any]) -> Any:
        ib = te.ir_builder.create()
        for lane in range(0, width, 4):
            ib.emit(outs[0].vstore([lane], ins[0].vload([lane], "float32x4")))
        return ib.get()

    return te.decl_tensor_intrin(_copied(width).op, copy, name="row_copy")


def _gemm(parts: Callable[[Any, Any, Any], Any]) -> Any:
    a, b = te.placeholder((4, 8), name="a"), te.placeholder((8, 4), name="b")
    k = te.reduce_axis((0, 8), "k")
    c = te.compute((4, 4), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return te.decl_tensor_intrin(c.op, lambda ins, outs: parts(*ins, *outs), name="gemm")


def _loads_and_stores(a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
    """A 4x8 by 8x4 product written out, as body, reset and update."""

    def all_of(first: Callable[[int, int], Any]) -> Any:
        ib = te.ir_builder.create()
        for i in range(4):
            for j in range(4):
                total = first(i, j)
                for k in range(8):
                    total = total + a.vload([i, k]) * b.vload([k, j])
                ib.emit(c.vstore([i, j], total))
        return ib.get()

    reset = te.ir_builder.create()
    for i in range(4):
        for j in range(4):
            reset.emit(c.vstore([i, j], tirx.const(0.0, "float32")))
    zero = tirx.const(0.0, "float32")
    return all_of(lambda i, j: zero), reset.get(), all_of(lambda i, j: c.vload([i, j]))


def test_builder_style_copy() -> None:
    A, B, s = elementwise(8, 16)
    s[B].tensorize(B.op.axis[1], _row())
    assert "match_buffer(A[v_i_o, 0:16], (16,)" in s.sch.mod.script()
    a = ints(8, 16)
    assert_computes(s, [A, B], [a], a)


def test_tvmscript_style_copy() -> None:
    @T.prim_func(s_tir=True)
    def copy(
        X: T.Buffer((16,), "float32", offset_factor=1),
        Y: T.Buffer((16,), "float32", offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(X[0:16])
            T.writes(Y[0:16])
            for i in T.vectorized(16):
                Y[i] = X[i]

    A, B, s = elementwise(8, 16)
    s[B].tensorize(B.op.axis[1], te.decl_tensor_intrin(_copied().op, copy))
    assert "T.vectorized(16)" in s.sch.mod.script()
    a = ints(8, 16)
    assert_computes(s, [A, B], [a], a)


def test_intrinsic_takes_the_memory_of_its_site() -> None:
    A, B, s = elementwise(8, 16)
    AA = s.cache_read(A, "shared", [B])
    s[AA].compute_at(s[B], B.op.axis[0])
    s[AA].storage_align(AA.op.axis[0], 32, 4)
    s[AA].tensorize(AA.op.axis[1], _row())
    text = s.sch.mod.script()
    assert 'match_buffer(A_shared[v0_o, 0:16], (16,), scope="shared"' in text
    assert '"buffer_dim_align": [[0, 0, 32, 4]]' in text
    a = ints(8, 16)
    assert_computes(s, [A, B], [a], a)


def test_reduction_that_goes_on_outside() -> None:
    A, B, C, k, s = product()
    _, _, ii, ji = s[C].tile(*C.op.axis, 4, 4)
    ko, ki = s[C].split(k, 8)
    s[C].reorder(ko, ii, ji, ki)
    s[C].tensorize(ii, _gemm(_loads_and_stores))
    sch = s.sch
    assert sch.get(sch.get_sblock("C_init_o")).name_hint == "C_init_o"
    a, b = ints(8, 16), ints(16, 8)
    assert_computes(s, [A, B, C], [a, b], a @ b)


def test_reduction_whole_inside() -> None:
    A, B, C, _, s = product(8, 8)
    _, _, ii, _ = s[C].tile(*C.op.axis, 4, 4)
    s[C].tensorize(ii, _gemm(lambda a, b, c: _loads_and_stores(a, b, c)[0]))
    assert "C_update_o" in s.sch.mod.script()
    a, b = ints(8, 8), ints(8, 8)
    assert_computes(s, [A, B, C], [a, b], a @ b)


def test_old_calls_reach_the_program() -> None:
    def call(a: Any, b: Any, c: Any) -> Any:
        ib = te.ir_builder.create()
        ib.scope_attr(a, "unit_scope", 1)
        pointers = a.access_ptr("r"), b.access_ptr("r"), c.access_ptr("w")
        ib.emit(tirx.call_extern("int32", "gemm", *pointers, c.strides[0]))
        return ib.get()

    _, _, C, _, s = product(8, 8)
    _, _, ii, _ = s[C].tile(*C.op.axis, 4, 4)
    s[C].tensorize(ii, _gemm(call))
    text = s.sch.mod.script()
    assert 'T.call_extern("int32", "gemm", T.tvm_access_ptr' in text
    assert '"unit_scope"' in text


def test_bound_buffer_is_used() -> None:
    Y = _copied()
    bound = tirx.decl_buffer((16,), "float32", "mine", scope="local", offset_factor=1)
    seen = []

    def copy(ins: list[Any], outs: list[Any]) -> Any:
        seen.append(outs[0].name)
        return outs[0].vstore([0], ins[0].vload([0], "float32x16"))

    A, B, s = elementwise(8, 16)
    AA = s.cache_read(A, "local", [B])
    s[AA].tensorize(AA.op.axis[1], te.decl_tensor_intrin(Y.op, copy, binds={Y: bound}))
    assert 'scope="local"' in s.sch.mod.script()
    assert seen == ["mine"]


def test_equal_intrinsics_share_a_name_and_others_do_not() -> None:
    scopes = ["global", "shared"]
    assert _row().register("body", scopes) == _row().register("body", scopes)
    names = {_row(width).register("body", scopes) for width in (4, 8, 16)}
    names.add(_row().register("body", ["global", "local"]))
    assert len(names) == 4
    assert all(name.startswith("layout_ext.te.row_copy.body.") for name in names)


def test_name_is_the_same_in_another_process() -> None:
    found = _row().register("body", ["global", "shared"])
    assert found == "layout_ext.te.row_copy.body.fa970f8a34a12d93"


def test_intrinsic_that_tvm_knows_by_name() -> None:
    A, B, s = elementwise(8, 16)
    s[B].tensorize(B.op.axis[1], _row().register("body", ["global", "global"]))
    a = ints(8, 16)
    assert_computes(s, [A, B], [a], a)


def _tensorize_rows(compute: Callable[[Any], Any], dtype: str = "float32", width: int = 16) -> Any:
    A = te.placeholder((8, width), dtype, name="A")
    B = compute(A)
    s = te.create_schedule(B.op)
    s[B].tensorize(B.op.axis[-1], _row())
    return s


def _elementwise(function: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda A: te.compute(A.shape, lambda i, j: function(A, i, j), name="B")


def _row_sum(A: Any) -> Any:
    k = te.reduce_axis((0, 16), "k")
    return te.compute((8,), lambda i: te.sum(A[i, k], axis=k), name="B")


_MISMATCHES: dict[str, tuple[Any, ...]] = {
    "other values": (_elementwise(lambda A, i, j: A[i, j] + 1.0),),
    "constant": (_elementwise(lambda A, i, j: tirx.const(1.0, "float32")),),
    "transposed": (_elementwise(lambda A, i, j: A[i, 15 - j]),),
    "two reads": (_elementwise(lambda A, i, j: A[i, j] + A[0, j]),),
    "half": (_elementwise(lambda A, i, j: A[i, j]), "float16"),
    "wider": (_elementwise(lambda A, i, j: A[i, j]), "float32", 32),
    "narrower": (_elementwise(lambda A, i, j: A[i, j]), "float32", 4),
    "guarded": (
        lambda A: te.compute((8, 16), lambda i, j: te.if_then_else(j < 9, A[i, j], 0.0), name="B"),
    ),
    "reduction": (_row_sum,),
}


@pytest.mark.parametrize("name", _MISMATCHES)
def test_loops_that_do_not_match_are_refused_in_one_sentence(name: str) -> None:
    s = _tensorize_rows(*_MISMATCHES[name])
    with pytest.raises(ScheduleError) as caught:
        _ = s.sch
    text = str(caught.value)
    assert "\n" not in text
    assert "row_copy" in text


def test_shape_mismatch_names_both_shapes() -> None:
    s = _tensorize_rows(_elementwise(lambda A, i, j: A[i, j]), "float32", 32)
    with pytest.raises(ScheduleError, match=r"writes global float32\[16\] and the loops write.*32"):
        _ = s.sch


def test_split_that_leaves_a_guard_is_refused() -> None:
    _, B, s = elementwise(8, 20)
    _, inner = s[B].split(B.op.axis[1], 16)
    s[B].tensorize(inner, _row())
    with pytest.raises(ScheduleError, match=r"TensorIR refuses tensorize of B by row_copy"):
        _ = s.sch


def test_reduction_outside_needs_an_update() -> None:
    _, _, C, k, s = product()
    _, _, ii, ji = s[C].tile(*C.op.axis, 4, 4)
    ko, ki = s[C].split(k, 8)
    s[C].reorder(ko, ii, ji, ki)
    s[C].tensorize(ii, _gemm(lambda a, b, c: _loads_and_stores(a, b, c)[0]))
    with pytest.raises(ScheduleError, match=r"gemm has no update.*give \(body, reset, update\)"):
        _ = s.sch


def test_unregistered_name_is_refused() -> None:
    _, B, s = elementwise(8, 16)
    s[B].tensorize(B.op.axis[1], "no_such_intrinsic")
    with pytest.raises(ScheduleError, match="no_such_intrinsic"):
        _ = s.sch


def test_declaration_errors() -> None:
    X = te.placeholder((16,), name="X")
    Y = _copied()
    Z = te.compute((16,), lambda i: Y[i], name="Z")
    with pytest.raises(ScheduleError, match="reads the computed Y"):
        te.decl_tensor_intrin(Z.op, lambda ins, outs: None)
    with pytest.raises(ScheduleError, match="not a PlaceholderOp"):
        te.decl_tensor_intrin(X.op, lambda ins, outs: None)
    with pytest.raises(ScheduleError, match="a PrimFunc or a function of"):
        te.decl_tensor_intrin(Y.op, "copy")
    with pytest.raises(ScheduleError, match="emit takes a statement or an expression"):
        te.ir_builder.create().emit("copy")


def test_tvmscript_with_a_parameter_too_few() -> None:
    @T.prim_func(s_tir=True)
    def fill(Y: T.Buffer((16,), "float32", offset_factor=1)) -> None:
        with T.sblock("root"):
            T.reads()
            T.writes(Y[0:16])
            Y[0] = T.float32(0)

    with pytest.raises(ScheduleError, match="has 1 parameters and the compute has 2 tensors"):
        te.decl_tensor_intrin(_copied().op, fill)


def test_empty_builder_gives_a_statement() -> None:
    assert isinstance(te.ir_builder.create().get(), tvm.tirx.Stmt)
