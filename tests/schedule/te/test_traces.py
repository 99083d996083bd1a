"""Everything the face does is in TVM's trace, which replays, from JSON too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm.s_tir.schedule.testing import verify_trace_roundtrip

from tests.programs.stages import elementwise, product
from tests.schedule.te.test_tensor_intrin import _row
from tvm_layout_ext import te


def _stock(args: list[Any]) -> tvm.tirx.PrimFunc:
    return te.create_prim_func(args).with_attr("global_symbol", "main")


def _staged_transpose() -> tuple[Any, list[Any]]:
    A = te.placeholder((40, 24), name="A")
    B = te.compute((24, 40), lambda i, j: A[j, i], name="B")
    s = te.create_schedule(B.op)
    AA = s.cache_read(A, "shared", [B])
    outer, inner = s[B].split(B.op.axis[1], factor=7)
    s[B].bind(outer, te.thread_axis("blockIdx.x"))
    s[B].bind(inner, te.thread_axis("threadIdx.x"))
    s[AA].compute_at(s[B], outer)
    s[AA].storage_align(AA.op.axis[0], 32, 1)
    s[AA].double_buffer(3)
    s[AA].annotate("note", ["a", 1])
    s[B].pragma(B.op.axis[0], "auto_unroll_max_step", 8)
    return s, [A, B]


def _reduction() -> tuple[Any, list[Any]]:
    A = te.placeholder((12, 24), name="A")
    k = te.reduce_axis((0, 24), "k")
    P = te.compute((12, 24), lambda i, j: A[i, j] + 1.0, name="P")
    B = te.compute((12,), lambda i: te.sum(P[i, k], axis=k), name="B")
    s = te.create_schedule(B.op)
    s[P].compute_inline()
    _, ki = s[B].split(k, factor=6)
    BF = s.rfactor(B, ki, 1)
    s[BF].compute_at(s[B], s[B].op.axis[0])
    s[BF].unroll(BF.op.reduce_axis[0])
    return s, [A, B]


def _matmul() -> tuple[Any, list[Any]]:
    A, B, C, _, s = product(12, 16)
    CL = s.cache_write(C, "local")
    fused = s[C].fuse(*C.op.axis)
    outer, inner = s[C].split(fused, nparts=3)
    s[C].bind(outer, te.thread_axis("blockIdx.x"))
    s[CL].compute_at(s[C], inner)
    s[CL].reorder(CL.op.reduce_axis[0], *CL.op.axis)
    return s, [A, B, C]


_SCHEDULES: list[Callable[[], tuple[Any, list[Any]]]] = [_staged_transpose, _reduction, _matmul]


@pytest.mark.parametrize("make", _SCHEDULES)
def test_trace_replays_from_python_and_json(make: Callable[[], tuple[Any, list[Any]]]) -> None:
    s, args = make()
    verify_trace_roundtrip(s.sch, _stock(args))


def test_trace_with_an_intrinsic_replays() -> None:
    A, B, s = elementwise(4, 8)
    s[B].tensorize(B.op.axis[1], _row(8))
    verify_trace_roundtrip(s.sch, _stock([A, B]))
