"""Blocks that update a buffer in place: mapped where no iteration touches another's element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.ir import assert_structural_equal
from tvm.script import tirx as T

import tvm_layout_ext as tlx
from tests.programs.coalesced import few, mapped, nests, sectors
from tests.programs.running import gives
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.simulate.report import Report
from tvm_layout_ext.transform import AutoCoalesce

H200 = tlx.cuda_target("sm_90a")
AGAIN = "several iterations may update one element of A"


def run(func: Any, *arrays: np.ndarray, **request: Any) -> tuple[Any, Report]:
    outcome, report = mapped(func, *arrays, block="A", **request)
    assert outcome.report.startswith("when the program is lowered, ")
    return outcome, report


def widths(report: Report, buffer: str = "A") -> set[tuple[str, int]]:
    return {(a.kind, a.vector_bytes) for a in report.accesses if a.buffer == buffer}


def updated(length: int, dtype: str, other: str) -> Any:
    body = f'A[vi] = A[vi] * T.Cast("{dtype}", 2) + T.Cast("{dtype}", B[vi])'
    return nests(f"A {length} {dtype}, B {length} {other}", f"A: i {length}: {body}")


@pytest.mark.matrix
@pytest.mark.parametrize("length", [1, 7, 33, 1000, 1001, 4096, 70001])
@pytest.mark.parametrize(
    ("dtype", "other"),
    [("float16", "float32"), ("float32", "float16"), ("int8", "int8"), ("float64", "int32")],
)
def test_an_elementwise_update_moves_each_sector_once(length: int, dtype: str, other: str) -> None:
    a, b = few(length, dtype=dtype), few(length, dtype=other)
    _, report = run(updated(length, dtype, other), a, b)
    np.testing.assert_array_equal(report.outputs["A"], a * a.dtype.type(2) + b.astype(dtype))
    least = -(-length * a.itemsize // 32)
    # A rest that fills no vector has requests of its own.
    spare = 2 if length == 70001 else 0
    assert least <= sectors(report, "A", "load") <= least + spare
    assert least <= sectors(report, "A", "store") <= least + spare


def test_whole_vectors_are_loaded_and_stored() -> None:
    a, b = few(4096, dtype="float16"), few(4096, dtype="float16")
    outcome, report = run(updated(4096, "float16", "float16"), a, b)
    assert widths(report) == {("load", 16), ("store", 16)}
    assert [(t.buffer, t.kind) for t in outcome.after] == [
        ("A", "load"), ("B", "load"), ("A", "store")
    ]  # fmt: skip


symbolic = nests(
    "A nxm, B m", "A: i n, j m: A[vi, vj] = A[vi, vj] * T.float32(3) + B[vj]", symbols="n m"
)


@pytest.mark.parametrize("shape", [(1, 1), (33, 7), (5, 64), (130, 100)])
def test_two_symbolic_extents_of_64_bits_and_a_broadcast(shape: tuple[int, int]) -> None:
    a, b = few(*shape), few(shape[1])
    _, report = run(symbolic, a, b)
    np.testing.assert_array_equal(report.outputs["A"], a * 3 + b)


strided = nests(
    "A nxm float32 strides=(s,T.int64(1)), B nxm",
    "A: i n, j m: A[vi, vj] = A[vi, vj] + B[vi, vj]",
    symbols="n m s",
)


def test_a_view_with_strides_is_updated_and_nothing_beside_it() -> None:
    whole, b = few(33, 70), few(33, 64)
    before = whole.copy()
    _, report = run(strided, whole[:, 3:67], b)
    np.testing.assert_array_equal(report.outputs["A"], before[:, 3:67] + b)
    np.testing.assert_array_equal(whole, before)


from_offset = nests(
    "A 1000 float16 elem_offset=first offset_factor=4",
    "A: i 500: A[vi + 4] = A[vi + 4] * T.float16(3)",
    symbols="first",
)


def test_a_slice_behind_an_element_offset_is_updated() -> None:
    a = few(1100, dtype="float16")[8:1008]
    expected = np.concatenate([a[:4], a[4:504] * np.float16(3), a[504:]])
    _, report = run(from_offset, a)
    np.testing.assert_array_equal(report.outputs["A"], expected)
    assert widths(report) == {("load", 8), ("store", 8)}


def turned(size: int | None) -> Any:
    rows = size or "n"
    body = "A[vi, vj] = A[vi, vj] * T.float32(3) + B[vj, vi]"
    return nests(f"A {rows}x96, B 96x{rows}", f"A: i {rows}, j 96: {body}", symbols="n")


@pytest.mark.parametrize("size", [None, 128])
def test_another_operand_in_another_order_is_staged(size: int | None) -> None:
    a, b = few(128, 96), few(96, 128)
    outcome, report = run(turned(size), a, b)
    np.testing.assert_array_equal(report.outputs["A"], a * 3 + b.T)
    assert outcome.path == "staged"
    assert report.bank_conflicts == 0
    assert sectors(report, "B", "load") == sectors(report, "A", "store") == 128 * 96 * 4 // 32


symmetrised = nests(
    "A 64x64, B 64x64", "A: i 64, j 64: A[vi, vj] = A[vi, vj] + B[vi, vj] + B[vj, vi]"
)


def test_another_operand_in_two_orders_is_parted_and_staged() -> None:
    a, b = few(64, 64), few(64, 64)
    outcome, report = run(symmetrised, a, b)
    np.testing.assert_array_equal(report.outputs["A"], a + b + b.T)
    assert outcome.path == "staged"
    # What a thread has put into the tile itself nvcc loads once.
    assert sectors(report, "B", "load") == 64 * 64 * 4 // 32


def test_the_updated_buffer_can_be_staged_itself() -> None:
    """A block of threads loads its whole tile before it stores any of it."""
    a, b = few(4096, dtype="float16"), few(4096, dtype="float16")
    outcome, report = run(updated(4096, "float16", "float16"), a, b, stage="shared")
    np.testing.assert_array_equal(report.outputs["A"], a * np.float16(2) + b)
    assert outcome.path == "staged"
    assert "A_shared" in {access.buffer for access in report.accesses}


chosen = nests(
    "A 40x48, C 40x48",
    "A: i 40, j 48: T.where(j < 45); "
    "A[vi, vj] = T.if_then_else(vj < 7, A[vi, vj] * T.float32(3), C[vi, vj])",
)


def test_an_update_under_two_conditions_leaves_the_rest_alone() -> None:
    a, c = few(40, 48), few(40, 48)
    expected = np.concatenate([a[:, :7] * 3, c[:, 7:45], a[:, 45:]], axis=1)
    _, report = run(chosen, a, c)
    np.testing.assert_array_equal(report.outputs["A"], expected)


flat = nests("A 40x48", "A: i 1920: A[vi // 48, vi % 48] = A[vi // 48, vi % 48] * T.float32(3)")


every_other = nests(
    "A 40x48", "A: i 40, j 24: A[vi, vj * 2 + 1] = A[vi, vj * 2 + 1] * T.float32(3)"
)


@pytest.mark.parametrize(("func", "step"), [(flat, 1), (every_other, 2)])
def test_elements_that_only_their_offsets_tell_apart(func: Any, step: int) -> None:
    a = few(40, 48)
    expected = a.copy()
    expected[:, step - 1 :: step] *= 3
    _, report = run(func, a)
    np.testing.assert_array_equal(report.outputs["A"], expected)


def fused_inside(columns: int) -> Any:
    """A box of a matrix, gone through by one loop of 40 rows of so many columns."""

    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((43, 48), "float32")) -> None:
        for f in T.serial(40 * columns):
            with T.sblock("A"):
                vi = T.axis.spatial(40, f // columns)
                vj = T.axis.spatial(columns, f % columns)
                A[vi + 3, vj + 1] = A[vi + 3, vj + 1] * T.float32(3)

    return func


@pytest.mark.parametrize("columns", [4, 24, 47])
def test_one_loop_over_a_box_has_an_element_an_iteration(columns: int) -> None:
    """Neither its offset is linear in the loop, nor does the loop move in one dim alone."""
    a = few(43, 48)
    expected = a.copy()
    expected[3:, 1 : columns + 1] *= 3
    _, report = run(fused_inside(columns), a)
    np.testing.assert_array_equal(report.outputs["A"], expected)


#: A's shape, loops, A's indices, and these by NumPy; ``n`` is 33.
APART = {
    "pitched rows": ("9216", "i 96, j 64", "vi * 96 + vj", lambda i, j: i * 96 + j),
    "heads with gaps": (
        "96x80", "i 96, j 4, c 16", "vi, vj * 20 + vc", lambda i, j, c: (i, j * 20 + c)
    ),
    "int32 loops beside a symbolic row": (
        "nx80", "i n, j 4, c 16", "vi, vj * 20 + vc", lambda i, j, c: (i, j * 20 + c)
    ),
    "symbolic rows with gaps": ("1000", "i n, j 8", "vi * 10 + vj", lambda i, j: i * 10 + j),
    "a ragged fused loop": ("1001x3", "f 3001", "vf // 3, vf % 3", lambda f: (f // 3, f % 3)),
    "beside the diagonal": ("97x97", "i 96", "vi, vi + 1", lambda i: (i, i + 1)),
    "the other diagonal": ("96x96", "i 96", "vi, 95 - vi", lambda i: (i, 95 - i)),
    "skewed rows": ("48x140", "i 48, j 90", "vi, vi + vj", lambda i, j: (i, i + j)),
    "a symbolic offset": ("1000", "i 60, j 5", "n + vi * 7 + vj", lambda i, j: 33 + i * 7 + j),
}  # fmt: skip


@pytest.mark.parametrize("case", APART)
def test_updates_with_elements_of_their_own_are_mapped_and_scheduled(case: str) -> None:
    shape, loops, place, where = APART[case]
    ends = [33 if one[2:] == "n" else int(one[2:]) for one in loops.split(", ")]
    sizes = [33 if one == "n" else int(one) for one in shape.split("x")]
    func = nests(
        f"A {shape}, C n",
        f"A: {loops}: A[{place}] = A[{place}] * T.float32(3) + T.float32(1)",
        symbols="n",
    )
    a, n = few(*sizes), few(33)
    expected = a.copy()
    at = where(*np.indices(ends))
    expected[at] = a[at] * 3 + 1
    _, report = run(func, a, n)
    np.testing.assert_array_equal(report.outputs["A"], expected)
    schedule = tlx.DefaultSchedule()
    with H200:
        mod = schedule(tvm.IRModule({"main": func}))
    (choice,) = schedule.choices
    assert (choice.rule, choice.fell_back) == ("blocks", False)
    gives(mod, a, n, target=H200, A=expected)


@T.prim_func(s_tir=True)
def folded(A: T.Buffer((40, 48), "float32")) -> None:
    for f in T.serial(1920):
        with T.sblock("A"):
            vi = T.axis.spatial(40, f // 48)
            vj = T.axis.spatial(24, f % 24)
            A[vi, vj + 1] = A[vi, vj + 1] * T.float32(3)


masked = nests(
    "A 63x65 float16",
    "A: i 63, j 65: A[vi, vj] = T.if_then_else(vj < 40, A[vi, vj], T.float16(0))",
)


def test_a_mask_in_place_is_not_made_of_shifted_vectors() -> None:
    """A lane would load a neighbour's elements, which other warps may have stored by then."""
    a = few(63, 65, dtype="float16")
    outcome, report = run(masked, a)
    np.testing.assert_array_equal(report.outputs["A"], np.where(np.arange(65) < 40, a, 0))
    assert outcome.path == "direct"


twice = nests(
    "A 4096, B 4096",
    "A: i 4096: A[vi] = A[vi] * T.float32(2)",
    "A1: i 4096: A[vi] = A[vi] + B[vi]",
)


def test_two_updates_of_one_buffer_are_two_kernels() -> None:
    sch = s_tir.Schedule(twice)
    for block in ("A", "A1"):
        assert sch.auto_coalesce(block).path == "direct"
    a, b = few(4096), few(4096)
    assert widths(gives(sch, a, b, A=a * 2 + b)) == {("load", 16), ("store", 16)}


@T.prim_func(s_tir=True)
def in_a_kernel(A: T.Buffer((32, 256), "float32"), B: T.Buffer((32, 256), "float32")) -> None:
    S = T.sblock_alloc_buffer((32, 256), "float32", scope="shared")
    for i in T.thread_binding(32, "blockIdx.x"):
        for t in T.thread_binding(64, "threadIdx.x"):
            for v in T.vectorized(4):
                with T.sblock("load"):
                    vi = T.axis.spatial(32, i)
                    vj = T.axis.spatial(256, t * 4 + v)
                    S[vi, vj] = A[vi, vj]
        for j in T.serial(256):
            with T.sblock("A"):
                vi, vj = T.axis.remap("SS", [i, j])
                S[vi, vj] = S[vi, vj] * T.float32(2)
        for t in T.thread_binding(64, "threadIdx.x"):
            for v in T.vectorized(4):
                with T.sblock("B"):
                    vi = T.axis.spatial(32, i)
                    vj = T.axis.spatial(256, t * 4 + v)
                    B[vi, vj] = S[vi, vj]


def test_a_tile_is_updated_by_the_threads_of_its_kernel() -> None:
    a = few(32, 256)
    outcome, report = run(in_a_kernel, a, None)
    np.testing.assert_array_equal(report.outputs["B"], a * 2)
    assert outcome.path == "copy"
    # Each thread updates what it stored, and nvcc keeps that in registers.
    assert widths(report, "S") == {("store", 16)}


def test_the_pass_binds_the_loops_and_leaves_no_other_buffer() -> None:
    sch = s_tir.Schedule(updated(4096, "float32", "float32"))
    sch.auto_coalesce("A")

    @T.prim_func(s_tir=True)
    def expected(A: T.Buffer((4096,), "float32"), B: T.Buffer((4096,), "float32")) -> None:
        T.func_attr({"global_symbol": "main"})
        for block in T.thread_binding(8, "blockIdx.x"):
            for thread in T.thread_binding(128, "threadIdx.x"):
                for v in T.vectorized(4):
                    with T.sblock("A"):
                        vi = T.axis.spatial(4096, block * 512 + thread * 4 + v)
                        T.reads(A[vi], B[vi])
                        T.writes(A[vi])
                        T.sblock_attr({"layout_ext.coalesced": "direct"})
                        A[vi] = A[vi] * T.Cast("float32", 2) + T.Cast("float32", B[vi])

    assert_structural_equal(AutoCoalesce()(sch.mod)["main"], expected)


def test_a_policy_for_l2_reaches_the_stores() -> None:
    sch = s_tir.Schedule(updated(4096, "float32", "float32"))
    sch.eviction_policy("A", "evict_first")
    sch.auto_coalesce("A")
    (kernel,) = tlx.device_program(sch, target=H200).kernels.values()
    assert "evict_first" in str(kernel.body)
    a, b = few(4096), few(4096)
    gives(sch, a, b, target=H200, A=a * 2 + b)


def test_explain_tells_what_was_done() -> None:
    sch = s_tir.Schedule(updated(4096, "float32", "float32"))
    sch.auto_coalesce("A")
    assert "direct, vector i 4, lane i 32, warp i 4" in tlx.explain(sch).text()


@pytest.mark.parametrize(
    ("buffers", "body", "words"),
    [
        (
            "A 41",
            "i 40: A[vi] = A[vi] + A[vi + 1]",
            r"it reads A at \[i \+ 1\] and writes it at \[i\], which are elements of two",
        ),
        (
            "A 40x48, R 40 int32",
            "i 40, j 48: A[R[vi], vj] = A[R[vi], vj] * T.float32(3)",
            rf"{AGAIN}, .* at \[R.*\[i\], j\]; give",
        ),
        (
            "A 40x24",
            "i 40, j 48: A[vi, vj // 2] = A[vi, vj // 2] * T.float32(3)",
            rf"{AGAIN}, .* at \[i, j // 2\]",
        ),
        (
            "A 140",
            "i 10, j 12: A[vi * 10 + vj] = A[vi * 10 + vj] + T.float32(1)",
            rf"{AGAIN}, .* at \[i \* 10 \+ j\]",
        ),
        ("A 40x40", "i 20, j 20: A[vi + vj, vi + vj] = A[vi + vj, vi + vj] + T.float32(1)", AGAIN),
        (
            "A 40, B 40x48",
            "i 40, j 48: A[vi] = A[vi] + B[vi, vj]",
            r"each iteration of j updates A at \[i\] once more; make that a reduction",
        ),
    ],
)
@pytest.mark.parametrize("stage", ["auto", "shared", "none"])
def test_iterations_that_depend_on_each_other_are_refused(
    buffers: str, body: str, words: str, stage: str
) -> None:
    refused(nests(buffers, f"A: {body}"), words, stage)


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize(
    ("loops", "place"),
    [
        ("i n", "vi * p"),
        ("i n", "vi * (p - 1)"),
        ("i n, j m", "(vi * m + vj) * p"),
        ("i n, j m", "vi * p + vj"),
        ("i n", "vi % p"),
        ("i 64", "vi * p"),
        ("i 64", "vi * (p - 1)"),
        ("i 64, j 8", "(vi * 8 + vj) * p"),
        ("i 64, j 8", "vi * (p * 8) + vj"),
    ],
)
def test_symbolic_steps_that_may_be_too_short_are_refused(
    loops: str, place: str, kind: str
) -> None:
    """TVM's detect_iter_map takes none for zero: with p = 0 all iterations raced."""
    body = f"A[{place}] = A[{place}] + T.float32(1)"
    func = nests("A 9999, B nxm, C p", f"A: {loops}: {body}", symbols="n m p", kind=kind)
    refused(func, AGAIN, "auto")


def test_a_loop_that_comes_to_an_element_again_is_refused() -> None:
    words = rf"{AGAIN}, .* at \[f // 48, f % 24 \+ 1\]"
    refused(folded, words, "auto")


def refused(func: Any, words: str, stage: str) -> None:
    sch = s_tir.Schedule(func)
    before = str(sch.mod)
    with pytest.raises(ScheduleError, match=f"no legal mapping of block A: {words}"):
        sch.auto_coalesce("A", stage=stage)
    assert str(sch.mod) == before


alike = nests(
    "A 64, B 64",
    "A: i 64: A[vi] = A[vi] * T.float32(2)",
    "A: i 64: B[vi] = B[vi] * T.float32(2)",
)


def test_a_block_that_shares_its_name_is_not_mapped_in_place() -> None:
    sch = s_tir.Schedule(alike)
    block, _ = sch.get_child_blocks(sch.get_sblock("root"))
    with pytest.raises(ScheduleError, match=r"block A .* its name, which other blocks have"):
        sch.auto_coalesce(block)


def scattered(second: str) -> Any:
    body = f"A[P[vi], 0, vj] = B[vi, vj]; A[{second}, vj] = C[vi, vj]"
    return nests("A 64x2x16, B 32x16, C 32x16, P 32 int32", f"A: i 32, j 16: {body}")


def test_scattered_stores_that_a_number_tells_apart_are_mapped_in_vectors() -> None:
    b, c = few(32, 16), few(32, 16)
    places = np.random.default_rng(0).permutation(64)[:32].astype("int32")
    _, report = mapped(
        scattered("P[vi], 1"), np.zeros((64, 2, 16), "float32"), b, c, places, block="A"
    )
    np.testing.assert_array_equal(report.outputs["A"][places], np.stack([b, c], 1))
    assert widths(report) == {("store", 16)}


def test_scattered_stores_that_may_meet_are_refused() -> None:
    refused(scattered("P[vi] + 1, 0"), r"it stores A at .* elements of two iterations", "auto")
