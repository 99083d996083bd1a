from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

import tvm_layout_ext as tlx
from tests.programs.mapped import computed
from tests.programs.running import gives
from tvm_layout_ext import decisions
from tvm_layout_ext.simulate import simulate

ROWS, COLS, TILE = 6, 256, 32


def _copy_schedule(
    stages: int | None, cols: int = COLS
) -> tuple[s_tir.Schedule, s_tir.schedule.SBlockRV]:
    """Rows doubled tile by tile through shared memory, one warp a row."""
    sch = computed((ROWS, cols), lambda a, i, j: a[i, j] * tvm.tirx.const(2, "float32"))
    block = sch.get_sblock("B")
    i, j = sch.get_loops(block)
    jo, ji = sch.split(j, [None, TILE])
    sch.bind(i, "blockIdx.x")
    sch.bind(ji, "threadIdx.x")
    copy = sch.cache_read(block, 0, "shared")
    sch.compute_at(copy, jo, preserve_unit_loops=True)
    sch.bind(sch.get_loops(copy)[-1], "threadIdx.x")
    if stages is not None:
        sch.annotate(copy, "layout_ext.num_stages", stages)
    return sch, copy


def _allocated(mod: tvm.IRModule) -> int:
    kernel = next(iter(tlx.device_program(mod).kernels.values()))
    return sum(tlx.shared_buffers(kernel).values())


def test_the_decision_is_on_record() -> None:
    sch, _ = _copy_schedule(3)
    with decisions.collect() as made:
        tlx.lower(sch)
    said = [(d.subject, d.text) for d in made if d.maker == "InjectMultiStageBuffer"]
    assert said == [("A_shared", "3 buffer versions over loop j_0")]


def test_refuses_a_copy_outside_every_serial_loop() -> None:
    sch = computed((64,), lambda a, i: a[i] + tvm.tirx.const(1, "float32"))
    block = sch.get_sblock("B")
    outer, lane = sch.split(sch.get_loops(block)[0], [2, None])
    sch.bind(outer, "blockIdx.x")
    sch.bind(lane, "threadIdx.x")
    copy = sch.cache_read(block, 0, "shared")
    sch.compute_at(copy, outer)
    sch.bind(sch.get_loops(copy)[-1], "threadIdx.x")
    sch.annotate(copy, "layout_ext.num_stages", 2)
    with pytest.raises(tlx.ScheduleError, match=r"A_shared asks .* no serial loop holds both"):
        tlx.lower(sch)


def test_two_copies_of_one_tensor_are_two_buffers() -> None:
    """Both are called A_shared; keyed by name they were taken for one buffer with two writers."""
    a = te.placeholder((256,), "float32", "A")
    c = te.compute((256,), lambda i: a[i] * a[i], name="C")
    b = te.compute((256,), lambda i: a[i] + c[i], name="B")
    s = tlx.create_schedule(b.op)
    outer, inner = s[b].split(b.op.axis[0], factor=128)
    step, lane = s[b].split(inner, factor=32)
    s[b].bind(outer, te.thread_axis("blockIdx.x"))
    s[b].bind(lane, te.thread_axis("threadIdx.x"))
    s[c].set_scope("local")
    s[c].compute_at(s[b], lane)
    for copy in (s.cache_read(a, "shared", [b]), s.cache_read(a, "shared", [c])):
        s[copy].compute_at(s[b], step)
        s[copy].bind(copy.op.axis[0], te.thread_axis("threadIdx.x"))
        s[copy].double_buffer()
    data = np.random.default_rng(0).standard_normal(256).astype("float32")
    mod = s.to_module([a, b])
    gives(mod, data, None, B=data + data * data)
    assert _allocated(mod) == 2 * 2 * 32 * 4


def test_extent_may_depend_on_the_block_but_not_on_the_thread() -> None:
    """Versions in such a loop once raced."""

    def triangle(axis: str) -> tvm.tirx.PrimFunc:
        source = f"""
@T.prim_func(s_tir=True)
def main(A: T.Buffer((8, 32), "float32"), B: T.Buffer((4, 8, 32), "float32")) -> None:
    for b in T.thread_binding(4, thread="{axis}"):
        for t in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("all"):
                s = T.sblock_alloc_buffer((4, 32), scope="shared")
                for k in range(b + 1):
                    with T.sblock("s"):
                        T.reads(A[k, t])
                        T.writes(s[b, t])
                        T.sblock_attr({{"layout_ext.num_stages": 2}})
                        s[b, t] = A[k, t]
                    with T.sblock("B"):
                        T.reads(s[b, 31 - t])
                        T.writes(B[b, k, t])
                        B[b, k, t] = s[b, 31 - t]
"""
        return tvm.script.from_source(source)

    a = np.random.default_rng(0).standard_normal((8, 32)).astype("float32")
    report = simulate(triangle("blockIdx.x"), a, np.zeros((4, 8, 32), "float32"))
    for b in range(4):
        np.testing.assert_array_equal(report.outputs["B"][b, : b + 1], a[: b + 1, ::-1])
    assert not report.hazards
    with pytest.raises(tlx.ScheduleError, match=r"Loop k .* depends on threadIdx.y"):
        tlx.lower(triangle("threadIdx.y"))
