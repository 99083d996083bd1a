from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te, tirx
from tvm.script import tirx as T
from tvm_ffi import structural_equal

import tvm_layout_ext as tlx
from tests.programs.coalesced import numbers
from tests.programs.movements import drawn
from tests.programs.running import gives
from tests.programs.tiles import upside_down
from tvm_layout_ext import decisions
from tvm_layout_ext.coalesce import choose
from tvm_layout_ext.coalesce.cost import count_kernels
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.gpu.hardware import MULTIPROCESSORS
from tvm_layout_ext.schedules import gather_rows
from tvm_layout_ext.transform.mapped_kernels import mapped_kernels


def schedule_of(*tensors: Any) -> s_tir.Schedule:
    return s_tir.Schedule(te.create_prim_func(list(tensors)))


def copy(shape: tuple[int, ...], dtype: str = "float32") -> s_tir.Schedule:
    a = te.placeholder(shape, dtype, "A")
    return schedule_of(a, te.compute(shape, lambda *i: a[i], "B"))


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
def test_a_copy_moves_16_bytes_a_lane_and_no_sector_twice(dtype: str) -> None:
    sch = copy((64, 64), dtype)
    assert sch.auto_coalesce("B").path == "direct"
    a = numbers((64, 64), dtype)
    report = gives(sch, a, None, B=a)
    assert {access.vector_bytes for access in report.accesses} == {16}
    assert report.sectors == 2 * a.nbytes // 32


def test_a_ragged_copy_keeps_its_vectors_inside() -> None:
    sch = copy((257, 257))
    sch.auto_coalesce("B")
    a = numbers((257, 257))
    report = gives(sch, a, None, B=a)
    assert [access.vector_bytes for access in report.accesses] == [16, 16, 4, 4]


def test_symbolic_sizes() -> None:
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n, m), "float16", "A")
    sch = schedule_of(a, te.compute((n, m), lambda i, j: a[i, j], "B"))
    sch.auto_coalesce("B")
    program = tlx.device_program(sch)
    for shape in [(33, 65), (1, 1), (64, 64)]:
        value = numbers(shape, "float16")
        gives(program, value, None, B=value)


def test_a_copy_in_a_kernel_uses_the_threads_of_the_kernel() -> None:
    sch, tile = upside_down("float16")
    assert sch.auto_coalesce(tile).path == "copy"
    value = numbers((64, 64), "float16")
    report = gives(sch, value, None, B=value[::-1])
    load = next(access for access in report.accesses if access.buffer == "A")
    assert (load.vector_bytes, load.sectors) == (16, load.ideal_sectors)


@pytest.mark.parametrize(
    ("dtype", "to", "vector_bytes", "steps"),
    [("float16", "float16", 16, 1), ("float16", "float32", 16, 1), ("float16", "float16", 4, 4),
     ("float32", "float32", 4, 4), ("float32", "float32", 8, 4), ("int8", "int8", 1, 4)],
)  # fmt: skip
def test_a_thread_of_a_large_copy_moves_one_full_vector_or_several_narrow_ones(
    dtype: str, to: str, vector_bytes: int, steps: int
) -> None:
    n = 1 << 24
    a = te.placeholder((n,), dtype, "A")
    sch = schedule_of(a, te.compute((n,), lambda i: a[i].astype(to), "B"))
    sch.auto_coalesce("B", vector_bytes=vector_bytes)
    extents = [int(sch.get(loop).extent) for loop in sch.get_loops(sch.get_sblock("B"))]
    vector = vector_bytes // np.dtype(to).itemsize
    wanted = [n // (steps * 128 * vector), steps, 128, vector]
    assert extents == [wanted[0], *(n for n in wanted[1:] if n > 1)]


def test_factors_that_are_wide_leave_a_thread_its_vectors() -> None:
    # What is loaded for each row again comes out of caches.
    rows, n = 1 << 18, 64
    a, b = te.placeholder((rows, n), "float16", "A"), te.placeholder((n,), "float32", "B")
    scaled = te.compute((rows, n), lambda i, j: (a[i, j] * b[j]).astype("float16"), "C")
    sch = schedule_of(a, b, scaled)
    sch.auto_coalesce("C")
    extents = [int(sch.get(loop).extent) for loop in sch.get_loops(sch.get_sblock("C"))]
    assert extents == [rows * n // (4 * 128 * 4), 4, 128, 4]


def test_a_thread_of_a_gather_moves_two_full_vectors() -> None:
    tensors = gather_rows.compute((1 << 16, 1 << 15, 1024), "int32")
    sch = schedule_of(*tensors)
    sch.auto_coalesce("B")
    extents = [int(sch.get(loop).extent) for loop in sch.get_loops(sch.get_sblock("B"))]
    assert extents == [(1 << 15), 2, 128, 4]


@pytest.mark.parametrize("turned", [False, True])
def test_more_than_two_to_the_31_elements_need_and_get_64_bit_indices(turned: bool) -> None:
    side = tirx.IntImm("int64", 65536)
    a = te.placeholder((side, side), "int8", "A")
    b = te.compute((side, side), lambda i, j: a[j, i] if turned else a[i, j], "B")
    sch = schedule_of(a, b)
    sch.auto_coalesce("B")
    (kernel,) = tlx.device_program(sch).kernels.values()
    blocks = 131072 if turned else 2097152
    assert f'T.launch_thread("blockIdx.x", T.int64({blocks}))' in str(kernel)
    assert f"T.int64({8388608 if turned else 2048})" in str(kernel)


@pytest.mark.parametrize(("stage", "shared"), [("auto", False), ("shared", True), ("none", False)])
def test_loads_of_a_copy_go_through_shared_memory_only_on_request(stage: str, shared: bool) -> None:
    sch = copy((64, 64))
    sch.auto_coalesce("B", stage=stage)
    value = numbers((64, 64))
    report = gives(sch, value, None, B=value)
    assert any(access.scope == "shared" for access in report.accesses) == shared
    assert report.bank_conflicts == 0


def test_a_transpose_without_staging_stays_direct() -> None:
    a = te.placeholder((64, 64), "float32", "A")
    sch = schedule_of(a, te.compute((64, 64), lambda j, i: a[i, j], "B"))
    assert sch.auto_coalesce("B", stage="none").path == "direct"


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize("threads", [32, 96, 256, 1024])
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
def test_a_staged_tile_suits_any_number_of_threads(threads: int, dtype: str) -> None:
    a = te.placeholder((128, 72), dtype, "A")
    sch = schedule_of(a, te.compute((72, 128), lambda j, i: a[i, j], "B"))
    assert sch.auto_coalesce("B", num_threads=threads, stage="shared").path == "staged"
    value = numbers((128, 72), dtype)
    report = gives(sch, value, None, B=value.T)
    # Rows of 72 bytes are loaded by aligned vectors, whose tile has a tenth more wavefronts.
    assert report.bank_conflicts <= (report.wavefronts // 10 if dtype == "int8" else 0)
    assert not report.hazards


def test_loads_in_two_orders_meet_in_one_kernel() -> None:
    a = te.placeholder((64, 96), "float16", "A")
    b = te.placeholder((96, 64), "float16", "C")
    sch = schedule_of(a, b, te.compute((96, 64), lambda j, i: a[i, j] + b[j, i], "B"))
    assert sch.auto_coalesce("B").path == "staged"
    values = numbers((64, 96), "float16"), numbers((96, 64), "float16")
    report = gives(sch, *values, None, B=values[0].T + values[1])
    assert report.bank_conflicts == 0
    assert report.sectors == report.ideal_sectors


def test_the_decision_tells_sectors_before_and_after() -> None:
    sch = copy((64, 64))
    with decisions.collect() as made:
        sch.auto_coalesce("B")
    (decision,) = made
    assert "load of A: 16 bytes a lane, 16 sectors a request (least 16)" in decision.text
    assert "us with load of A: 4 bytes a lane, 4 sectors a request (least 4)" in decision.text


def refused(sch: s_tir.Schedule, match: str, block: Any = "B", **arguments: Any) -> None:
    before = sch.mod
    with pytest.raises(ScheduleError, match=match) as error:
        sch.auto_coalesce(block, **arguments)
    assert str(error.value).endswith(".")
    assert sch.mod.same_as(before) or structural_equal(sch.mod, before)


@pytest.mark.parametrize(
    ("shape", "words", "given"),
    [
        *[((64,), "num_threads", {"num_threads": n}) for n in (0, 16, 33, 1056, 64.0, True, "64")],
        *[((64,), "vector_bytes", {"vector_bytes": n}) for n in (3, 32)],
        *[((64,), "stage", {"stage": value}) for value in ("yes", None)],
        ((64,), "no single block named 'C'", {"block": "C"}),
        *[((64,), "auto_coalesce", {"block": block}) for block in (None, 3, "B C")],
        ((4, 0), "extent 0", {}),
        ((65536, 65536), "4,294,967,296 elements", {}),
    ],
)
def test_wrong_arguments_and_sizes_are_refused(
    shape: tuple[int, ...], words: str, given: dict[str, Any]
) -> None:
    refused(copy(shape, "int8"), words, **given)


def test_a_bound_loop_is_refused() -> None:
    sch = copy((64, 64))
    sch.bind(sch.get_loops(sch.get_sblock("B"))[0], "blockIdx.x")
    refused(sch, "i of block B|already bound", num_threads=64)


def test_a_vectorized_loop_is_refused() -> None:
    sch = copy((64, 4))
    sch.vectorize(sch.get_loops(sch.get_sblock("B"))[1])
    refused(sch, "already vectorized")


@T.prim_func(s_tir=True)
def opaque(A: T.Buffer((64,), "float32")) -> None:
    for i in range(64):
        with T.sblock("B"):
            vi = T.axis.spatial(64, i)
            T.reads()
            T.writes(A[vi])
            T.evaluate(T.call_extern("int32", "fill", A.data, vi))


@T.prim_func(s_tir=True)
def in_order(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")) -> None:
    for i in range(64):
        with T.sblock("B"):
            vi = T.axis.scan(64, i)
            B[vi] = A[vi]


@T.prim_func(s_tir=True)
def without_loops(A: T.Buffer((1,), "float32"), B: T.Buffer((1,), "float32")) -> None:
    with T.sblock("B"):
        B[0] = A[0]


@T.prim_func(s_tir=True)
def nested(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")) -> None:
    for i in range(8):
        with T.sblock("B"):
            vi = T.axis.spatial(8, i)
            for j in range(8):
                with T.sblock("inner"):
                    vj = T.axis.spatial(8, j)
                    B[vi * 8 + vj] = A[vi * 8 + vj]


@pytest.mark.parametrize(
    ("func", "words"),
    [
        (opaque, "Block B is opaque"),
        (nested, "Block B is opaque"),
        (in_order, "Axis vi of block B is neither spatial nor one of a reduc"),
        # It was an IndexError, or a text of TVM's with the whole program.
        (without_loops, "Block B is the outermost of its function"),
    ],
)
def test_blocks_of_other_forms_are_refused(func: Any, words: str) -> None:
    refused(s_tir.Schedule(func), words)


def test_the_root_of_a_function_is_refused() -> None:
    refused(s_tir.Schedule(in_order), "Block root is the outermost of its function", "root")


def test_another_number_of_threads_than_the_kernel_has_is_refused() -> None:
    sch = copy((64, 64))
    block = sch.get_sblock("B")
    i, j = sch.get_loops(block)
    sch.bind(i, "blockIdx.x")
    sch.bind(j, "threadIdx.x")
    tile = sch.cache_read(block, 0, "shared")
    sch.compute_at(tile, i)
    refused(sch, "has 64 threads; auto_coalesce cannot give the block 128", tile, num_threads=128)


@pytest.mark.parametrize(
    ("index", "where"),
    [
        (lambda i: tirx.if_then_else(i < 50, i + 50, i - 50), lambda i: (i + 50) % 100),
        (lambda i: tirx.Select(tirx.likely(i < 50), i + 50, i - 50), lambda i: (i + 50) % 100),
        (lambda i: tirx.bitwise_not(i) + 100, lambda i: 99 - i),
    ],
    ids=["if_then_else", "likely", "not"],
)
def test_indices_of_choices_and_bits_are_counted(index: Any, where: Any) -> None:
    a = te.placeholder((100,), "float32", "A")
    sch = schedule_of(a, te.compute((100,), lambda i: a[index(i)], "B"))
    outcome = sch.auto_coalesce("B")
    assert [(t.buffer, t.kind) for t in outcome.after] == [("A", "load"), ("B", "store")]
    value = numbers((100,))
    gives(sch, value, None, B=value[where(np.arange(100))])


def test_an_unknown_function_in_an_index_is_refused() -> None:
    a = te.placeholder((64,), "float32", "A")
    index: Callable[[Any], Any] = lambda i: tirx.call_extern("int32", "hash", i)  # noqa: E731
    sch = schedule_of(a, te.compute((64,), lambda i: a[index(i)], "B"))
    refused(sch, "indexes A by")


@T.prim_func(s_tir=True)
def from_sixteen(A: T.Buffer((4096,), "float32"), B: T.Buffer((4096,), "float32")) -> None:
    for i in range(16, 4096):
        with T.sblock("B"):
            vi = T.axis.spatial(4096, i)
            B[vi] = A[vi]


def test_a_loop_that_does_not_start_at_0_is_refused_by_name() -> None:
    refused(
        s_tir.Schedule(from_sixteen),
        "loop i starts at 16, .*; let i run over its 4080 values from 0, and add 16 where B uses",
    )


@pytest.mark.parametrize("stage", ["none", "shared"])
def test_a_second_call_says_that_the_block_is_mapped_already(stage: str) -> None:
    sch = copy((64, 64))
    path = sch.auto_coalesce("B", stage=stage).path
    refused(sch, f"Block B is mapped already: auto_coalesce made it {path}; call it once")


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 16, 31])
def test_copies_of_a_few_elements_are_staged_too(count: int, dtype: str) -> None:
    a = te.placeholder((count,), dtype, "A")
    sch = s_tir.Schedule(te.create_prim_func([a, te.compute((count,), lambda i: a[i], "B")]))
    if count & (count - 1) == 0 and count * np.dtype(dtype).itemsize <= 16:
        refused(sch, "which one thread moves at once", stage="shared")
        return
    assert sch.auto_coalesce("B", stage="shared").path == "staged"
    x = np.arange(1, count + 1).astype(dtype)
    report = gives(sch, x, None, B=x)
    assert (report.bank_conflicts, report.hazards) == (0, [])


def test_the_loops_as_they_are_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are a proposal, and what the decision calls the time before."""
    tried: list[Any] = []
    attempt = choose._try
    monkeypatch.setattr(
        choose, "_try", lambda subject, way: tried.append(way) or attempt(subject, way)
    )
    a = te.placeholder((1024, 1024), name="A")
    b = te.compute((1024, 1024), lambda i, j: a[j, i], name="B")
    outcome = schedule_of(a, b).auto_coalesce("B")
    assert outcome.before
    assert len(tried) == len(outcome.lost) + 1


def test_of_equals_the_leanest_is_taken_though_another_is_large() -> None:
    """A mean of 7x7 pixels: one map asks for 18 MB where this one of as many blocks has 7."""
    a = te.placeholder((64, 816, 7, 7), "float16", "A")
    k, n = te.reduce_axis((0, 7), "k"), te.reduce_axis((0, 7), "n")
    b = te.compute((64, 816), lambda i, c: te.sum(a[i, c, k, n], axis=(k, n)), "B")
    load = next(one for one in schedule_of(a, b).auto_coalesce("B").after if one.buffer == "A")
    assert load.waste < 1.5


def test_of_equals_one_that_fills_the_gpu_is_taken() -> None:
    """By the model 26 blocks take as long as 1,632 for the argmax of a middle axis."""
    sch = s_tir.Schedule(drawn(437).function())
    sch.auto_coalesce("B")
    kernels = count_kernels(mapped_kernels(sch.mod)["main"])
    assert max(work.blocks for work in kernels) >= MULTIPROCESSORS / 3


def test_a_plan_that_is_modelled_to_be_slower_says_why_it_is_taken() -> None:
    a = te.placeholder((64, 64), "float32", "A")
    outcome = schedule_of(a, te.compute((64, 64), lambda i, j: a[j, i], "B")).auto_coalesce("B")
    assert outcome.seconds > outcome.seconds_before
    assert outcome.text.endswith("; within 1 us the fewest sectors are taken.")
