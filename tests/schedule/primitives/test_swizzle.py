"""``sch.swizzle`` and ``storage_align(swizzle=...)``: what they record, refuse and replay."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import s_tir, te

import tvm_layout_ext as tlx
from tests.programs.running import gives
from tests.programs.swizzles import data, operand
from tvm_layout_ext import decisions
from tvm_layout_ext.errors import LayoutError, ScheduleError
from tvm_layout_ext.ir.annotations import SWIZZLE
from tvm_layout_ext.layout import LinearLayout, NVMMASharedLayout, SwizzledSharedLayout
from tvm_layout_ext.simulate import simulate

IDENTITY = LinearLayout.from_bases(
    {"offset": [(0, 1 << i) for i in range(5)] + [(1 << i, 0) for i in range(7)]},
    {"dim0": 128, "dim1": 32},
)


def mode_of(sch: s_tir.Schedule) -> Any:
    return sch.get(sch.get_sblock("S")).annotations[SWIZZLE]


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("xor", "xor"),
        ((8, 2, 4), "xor(8, 2, 4)"),
        ("pad(64, 8)", "pad(64, 8)"),
        (64, "64B"),
        (SwizzledSharedLayout(8, 2, 4, [1, 0]), "SwizzledShared(vec=8, "),
        (NVMMASharedLayout(64, 16), "NVMMAShared(swizzle_byte_width=64, "),
        (IDENTITY, "32,64,128,256,512,1024,2048;1,2,4,8,16"),
    ],
    ids=str,
)
def test_every_mode_is_recorded_and_keeps_the_result(mode: Any, text: str) -> None:
    sch = operand(mode)
    assert str(mode_of(sch)).startswith(text)
    a = data((128, 32), "float16")
    gives(sch, a, None, B=a)


def test_a_second_call_takes_the_place_of_the_first() -> None:
    sch = operand("pad")
    sch.swizzle("S", 0, 64)
    assert mode_of(sch) == "64B"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("S", 1), ScheduleError, "writes 1 buffers, so buffer_index 1 names none"),
        (("S", True), ScheduleError, "must be an int"),
        (("B",), ScheduleError, "Buffer B of block B is in global memory"),
        (("S", 0, 48), LayoutError, "'48B'; it must be auto"),
        (("S", 0, "zigzag"), LayoutError, "'zigzag'; it must be auto"),
        (("S", 0, None), LayoutError, "None; it must be auto"),
        (("S", 0, (8, 2)), LayoutError, "are three"),
        (("S", 0, (3, 1, 4)), LayoutError, "vec"),
        (
            ("S", 0, (8, 2, -4)),
            LayoutError,
            "(8, 2, -4); (vec, per_phase, max_phase) are three",
        ),
        (("S", 0, (8.0, 2, 4)), LayoutError, "are three powers of two"),
        (("S", 0, (True, 1, 1)), LayoutError, "are three powers of two"),
        (("S", 0, "pad(-8, 1)"), LayoutError, "'pad(-8, 1)'; it must be auto"),
        (("S", 0, "xor(8, 2)"), LayoutError, "'xor(8, 2)'; it must be auto"),
        (("S", 0, ""), LayoutError, "''; it must be auto"),
        (("S", 0, "1,2;-1"), LayoutError, "'1,2;-1'; it must be auto"),
        ((operand(None).get_sblock("S"),), ScheduleError, "no single block named"),
        (("S", 0, "pad(8, 8)"), LayoutError, "0 <= offset < factor"),
        (("S", 0, "Blocked([1], [32], [1], [0])"), LayoutError, "no layout of shared memory"),
        (("S", 0, "PaddedShared([[32, 8]], [1, 0])"), LayoutError, "ask for pad"),
    ],
)
def test_what_is_not_legal_is_refused(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message.replace("(", r"\(").replace(")", r"\)")):
        operand(None).swizzle(*arguments)


def test_a_padded_buffer_is_refused() -> None:
    sch = operand(None)
    sch.storage_align("S", 0, 0, 32, 8)
    with pytest.raises(ScheduleError, match="either padded or swizzled"):
        sch.swizzle("S")


def staged() -> tuple[Any, list[Any], Any]:
    a = te.placeholder((64, 64), "float32", "A")
    b = te.compute((64, 64), lambda j, i: a[i, j], "B")
    s = tlx.create_schedule(b.op)
    cache = s.cache_read(a, "shared", [b])
    j, i = b.op.axis
    jo, ji = s[b].split(j, 32)
    io, ii = s[b].split(i, 32)
    s[b].reorder(jo, io, ji, ii)
    s[b].bind(jo, te.thread_axis("blockIdx.y"))
    s[b].bind(io, te.thread_axis("blockIdx.x"))
    s[b].bind(ji, te.thread_axis("threadIdx.y"))
    s[b].bind(ii, te.thread_axis("threadIdx.x"))
    s[cache].compute_at(s[b], io)
    rows, columns = cache.op.axis
    s[cache].bind(rows, te.thread_axis("threadIdx.y"))
    s[cache].bind(columns, te.thread_axis("threadIdx.x"))
    return s, [a, b], cache


@pytest.mark.parametrize("mode", ["auto", "xor", "pad", (1, 1, 32), 128])
def test_storage_align_takes_a_swizzle(mode: Any) -> None:
    s, args, cache = staged()
    s[cache].storage_align(cache.op.axis[0], swizzle=mode)
    a = data((64, 64), "float32")
    report = gives(tlx.lower(s, args), a, None, B=a.T)
    assert (report.bank_conflicts == 0) == (mode != 128)


def test_the_last_call_of_storage_align_counts() -> None:
    s, args, cache = staged()
    s[cache].storage_align(cache.op.axis[0], 32, 1)
    s[cache].storage_align(cache.op.axis[0], swizzle="xor")
    assert "buffer_dim_align" not in str(s.sch.mod.script())
    s[cache].storage_align(cache.op.axis[0], 32, 1)
    assert SWIZZLE not in str(s.sch.mod.script())
    assert simulate(tlx.lower(s, args), data((64, 64), "float32"), None).bank_conflicts == 0


@pytest.mark.parametrize(
    ("factor", "offset", "stride"),
    [
        (32, 1, 33),
        (32, 33, 33),
        (32, 100, 36),
        (32, -1, 63),
        (32, -65, 63),
        (7, 20, 34),
        (1, 5, 32),
    ],
)
def test_offsets_beyond_the_factor_are_cut(factor: int, offset: int, stride: int) -> None:
    s, args, cache = staged()
    s[cache].storage_align(cache.op.axis[0], factor, offset)
    assert f"A_shared[threadIdx_x * {stride} + threadIdx_y]" in tlx.lower(s, args).script()


def test_storage_align_refuses_both_and_other_dims() -> None:
    s, _, cache = staged()
    rows, columns = cache.op.axis
    with pytest.raises(ScheduleError, match="not both"):
        s[cache].storage_align(rows, 32, 1, swizzle="auto")
    with pytest.raises(ScheduleError, match="cannot swizzle along"):
        s[cache].storage_align(columns, swizzle="auto")
    with pytest.raises(ScheduleError, match="an int factor, not None"):
        s[cache].storage_align(rows)


def test_auto_says_what_it_counted() -> None:
    with decisions.collect() as made:
        tlx.lower(operand("auto"))
    (said,) = [str(one) for one in made if one.maker == "SwizzleSharedMemory"]
    # 128 rows of 4 vectors: 16 requests of 4 wavefronts each way.
    assert said.endswith(
        "xor(8, 2, 4), 64 wavefronts a block to write and 64 to read, 128 without conflicts"
    )
