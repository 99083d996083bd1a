"""``sch.use_tensor_core``: what it refuses, how it replays, and what its kernels compute."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import s_tir, tirx

import tvm_layout_ext as tlx
from tests.programs.emitted import cuda_text, require_no_spills
from tests.programs.products import Product, multiplied, scheduled, simulated
from tests.sampling import pairs
from tvm_layout_ext import ScheduleError, TargetError, cuda_target, lower, te
from tvm_layout_ext.schedules.gemm import OPERATOR, multiply

TYPES = {
    "f16": Product("float16", "float32", "float16"),
    "f16_f16": Product("float16", "float16", "float16"),
    "bf16": Product("bfloat16", "float32", "bfloat16"),
    "tf32": Product("float32", "float32", "float32", instruction="mma.m16n8k8.f32.tf32"),
    "s8": Product("int8", "int32", "int32"),
    "u8": Product("uint8", "int32", "int32"),
    "e4m3": Product("float8_e4m3fn", "float32", "float16"),
    "e5m2": Product("float8_e5m2", "float32", "float16"),
}


@pytest.mark.matrix
@pytest.mark.parametrize("b_transposed", [False, True])
@pytest.mark.parametrize("a_transposed", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_result_without_conflicts_or_hazards(
    name: str, a_transposed: bool, b_transposed: bool
) -> None:
    product = replace(TYPES[name], a_transposed=a_transposed, b_transposed=b_transposed)
    report = simulated(product, scheduled(product))
    assert report.bank_conflicts == 0
    assert report.hazards == []


@pytest.mark.parametrize(
    ("shape", "batch"), [((50, 72, 40), 0), ((17, 9, 33), 0), ((40, 70, 24), 3), ((65, 1, 64), 2)]
)
def test_ragged_batched_products_with_bias_and_relu(
    shape: tuple[int, int, int], batch: int
) -> None:
    product = Product(out="float16", shape=shape, batch=batch, epilogue=True, b_transposed=True)
    simulated(product, scheduled(product, tile=(64, 64, 32)))


@pytest.mark.matrix
@pairs(
    transposed=[False, True],
    name=["f16", "tf32", "s8"],
    m=[64, 128, 256],
    n=[64, 128, 256],
    k=[16, 32, 64, 128],
)
def test_tiles_have_no_conflict(name: str, m: int, n: int, k: int, transposed: bool) -> None:
    product = replace(
        TYPES[name], shape=(m, n, k), a_transposed=transposed, b_transposed=not transposed
    )
    if name == "s8" and k == 16:
        with pytest.raises(ScheduleError, match=r"multiple of k is 16; .* needs multiples of 32"):
            scheduled(product, tile=(m, n, k))
        return
    sch = scheduled(product, tile=(m, n, k), warps=(4, 4))
    if name != "f16" and m == n == 256:
        # C's tile alone, of 4 bytes an element, is 256 KiB.
        with pytest.raises(TargetError, match=r"a block on sm_90a may have 232,448"):
            simulated(product, sch)
        return
    report = simulated(product, sch)
    assert report.bank_conflicts == 0


def staged_by_stmatrix(
    product: Product, lay_out: Callable[[s_tir.Schedule, Any], None] | None = None
) -> s_tir.Schedule:
    """Results leave by ``stmatrix``; ``lay_out`` gets the block that was its copy."""
    sch = s_tir.Schedule(product.func())
    tc = sch.use_tensor_core("C")
    out = sch.cache_write(tc.result, 0, "shared")
    held = sch.cache_write(tc.result, 0, "warp")
    warps, n = sch.split(tc.n, [2, None])
    sch.reorder(warps, tc.k, tc.m, n)
    kernel = sch.add_unit_loop(warps)
    sch.bind(kernel, "blockIdx.x")
    sch.bind(warps, "threadIdx.y")
    for block in (tc.a_fragment, tc.b_fragment, tc.a, tc.b):
        sch.compute_at(block, tc.k)
    sch.reverse_compute_at(tc.result, warps)
    sch.reverse_compute_at(held, warps)
    sch.reverse_compute_at(out, kernel)
    sch.store_matrix(held)
    if lay_out is not None:
        lay_out(sch, held)
    sch.distribute_epilogue(tc.result)
    for block in (tc.a, tc.b, out):
        _, y, x = sch.split(sch.fuse(*sch.get_loops(block)[-2:]), [None, 2, 32])
        sch.bind(y, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
    return sch


def test_stmatrix_stores_what_the_warp_holds() -> None:
    product = Product(out="float16", shape=(32, 64, 32), epilogue=True, b_transposed=True)
    sch = staged_by_stmatrix(product)
    assert "stmatrix.sync.aligned.m8n8.x4.shared.b16" in cuda_text(sch)
    simulated(product, sch)


@pytest.mark.parametrize(
    ("lay_out", "conflicts"),
    [
        (None, 224),
        (lambda sch, held: sch.swizzle(held, 0, "auto"), 0),
        (lambda sch, held: sch.swizzle(held, 0, "none"), 224),
        (lambda sch, held: sch.storage_align(held, 0, -2, 64, 8), 0),
    ],
)
def test_what_is_asked_for_the_copy_in_a_stmatrix_tile_is_not_lost(
    lay_out: Any, conflicts: int
) -> None:
    product = Product(out="float16", shape=(32, 64, 32), epilogue=True, b_transposed=True)
    report = simulated(product, staged_by_stmatrix(product, lay_out))
    assert [x.bank_conflicts for x in report.accesses if x.kind == "stmatrix"] == [conflicts]


@pytest.mark.parametrize(
    ("outer", "inner", "told"),
    [
        (
            lambda sch, tile: sch.swizzle(tile, 0, "xor"),
            lambda sch, held: sch.swizzle(held, 0, "pad"),
            r"layout_ext.swizzle \S*xor\S* and its statement \S+ \S*pad\S*, for the one buffer",
        ),
        (
            lambda sch, tile: sch.storage_align(tile, 0, -2, 64, 8),
            lambda sch, held: sch.storage_align(held, 0, -2, 64, 16),
            "buffer_dim_align .*8.* and its statement .*16.*, for the one buffer",
        ),
    ],
)
def test_a_tile_and_its_statement_that_disagree_are_refused(
    outer: Any, inner: Any, told: str
) -> None:
    product = Product(out="float16", shape=(32, 64, 32), epilogue=True, b_transposed=True)

    def both(sch: s_tir.Schedule, held: Any) -> None:
        outer(sch, sch.get_sblock(f"{sch.get(held).name_hint}_o"))
        inner(sch, held)

    with pytest.raises(ScheduleError, match=told):
        tlx.lower(staged_by_stmatrix(product, both).mod, target=tlx.cuda_target("sm_90a"))


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["tf32", "s8", "u8", "e4m3", "e5m2"])
def test_explain_states_the_load_of_what_ldmatrix_cannot_transpose(name: str) -> None:
    told = tlx.explain(scheduled(TYPES[name], tile=(64, 64, 32))).text()
    dtype = TYPES[name].operand if name != "tf32" else r"\w+"
    assert re.search(rf": ldmatrix\.x4\.a\.{dtype}\.k_major\.shared\.dyn", told)
    plain = "plain loads by each lane, as ldmatrix transposes only elements of 16 bits"
    assert re.search(rf": load\.x\d\.b\.{dtype}\.mn_major\.shared\.dyn: {plain}", told)


def test_explain_states_ldmatrix_where_it_transposes() -> None:
    told = tlx.explain(scheduled(TYPES["f16"])).text()
    assert "ldmatrix.x4.b.float16.mn_major.shared.dyn" in told
    assert "plain loads" not in told


@pytest.mark.matrix
@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("name", "tile", "warps"),
    [
        ("f16", (128, 128, 32), (2, 2)),
        ("f16", (128, 256, 32), (2, 4)),
        ("bf16", (128, 128, 32), (2, 2)),
        ("s8", (128, 128, 64), (2, 2)),
        ("tf32", (128, 128, 32), (2, 2)),
    ],
)
def test_no_register_spills(
    name: str, tile: tuple[int, int, int], warps: tuple[int, int], tmp_path: Path
) -> None:
    product = replace(TYPES[name], shape=(512, 512, 512))
    require_no_spills(cuda_text(scheduled(product, tile, warps)), tmp_path)


def _matmul(a: Any, b: Any, initial: float = 0.0) -> s_tir.Schedule:
    """A product whose factors are given as functions of (i, j, k)."""
    A = te.placeholder((64, 64), "float16", name="A")
    B = te.placeholder((64, 64), "float16", name="B")
    k = te.reduce_axis((0, 64), "k")
    add = te.comm_reducer(lambda x, y: x + y, lambda t: te.const(initial, t), name="add")
    C = te.compute(
        (64, 64), lambda i, j: add(a(A, B, i, j, k) * b(A, B, i, j, k), axis=k), name="C"
    )
    return s_tir.Schedule(te.create_prim_func([A, B, C]))


def _wide(x: Any) -> Any:
    return x.astype("float32")


def _element(A: Any, B: Any, i: Any, j: Any, k: Any) -> Any:
    return _wide(A[i, k])


def _other(A: Any, B: Any, i: Any, j: Any, k: Any) -> Any:
    return _wide(B[k, j])


def _touched(change: Callable[[s_tir.Schedule], Any]) -> s_tir.Schedule:
    sch = s_tir.Schedule(Product().func())
    change(sch)
    return sch


def _symbolic() -> s_tir.Schedule:
    return s_tir.Schedule(te.create_prim_func(multiplied((te.var("n", "int32"), 64, 64))))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: _matmul(_element, lambda A, B, i, j, k: _wide(A[k, j])), "by itself"),
        (lambda: _matmul(_element, lambda A, B, i, j, k: _wide(B[i, k])), "no iterator m"),
        (
            lambda: _matmul(lambda A, B, i, j, k: _wide(A[i, k]) + 1.0, _other),
            "a factor must be an element",
        ),
        (
            lambda: _matmul(lambda A, B, i, j, k: _wide(A[i, 63 - k]), _other),
            "every index must be a number, an iterator",
        ),
        (lambda: _matmul(_element, _other, initial=1.0), "tensor cores start at 0"),
        (
            lambda: _touched(lambda sch: sch.split(sch.get_loops("C")[0], [None, 16])),
            "no longer those of its 3 iterators",
        ),
        (
            lambda: _touched(lambda sch: sch.decompose_reduction("C", sch.get_loops("C")[2])),
            "no initial value",
        ),
        (_symbolic, r"n iterations of .*needs numbers"),
        (
            lambda: s_tir.Schedule(Product(shape=(0, 64, 64)).func()),
            "has 0 iterations of .*nothing",
        ),
        (
            lambda: s_tir.Schedule(Product(shape=(64, 64, 0)).func()),
            "has 0 iterations of .*nothing",
        ),
        (
            lambda: s_tir.Schedule(
                Product(operand="float8_e5m2").func().with_attr("target", cuda_target("sm_80"))
            ),
            r"needs compute capability 8\.9; sm_80 is older",
        ),
    ],
)
def test_refuses_what_is_no_product(make: Callable[[], s_tir.Schedule], why: str) -> None:
    sch = make()
    before = sch.mod
    block = [name for name in ("C", "C_update") if name in sch.mod.script()][-1]
    with pytest.raises(ScheduleError, match=why):
        sch.use_tensor_core(block)
    tvm.ir.assert_structural_equal(sch.mod, before)


def test_the_target_around_must_have_the_instruction() -> None:
    sch = s_tir.Schedule(Product().func())
    with cuda_target("sm_75"), pytest.raises(ScheduleError, match=r"needs compute capability 8\.0"):
        sch.use_tensor_core("C")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda sch, tc: sch.bind(tc.m, "threadIdx.x"), "bind warps to threadIdx.y or z"),
        (
            lambda sch, tc: sch.split(
                sch.get_loops(sch.get_child_blocks(tc.product)[-1])[-1], [2, 8]
            ),
            "no longer is one tile of mma.m16n8k16.f32.f16",
        ),
    ],
)
def test_tiles_that_were_changed_are_refused_when_lowered(change: Any, why: str) -> None:
    sch = s_tir.Schedule(Product().func())
    change(sch, sch.use_tensor_core("C"))
    with pytest.raises(ScheduleError, match=why):
        tlx.lower(sch.mod)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"multiples": (128, 120, 32)}, "multiple of n is 120; .* needs multiples of 16"),
        ({"multiples": (128, 128)}, "three are legal"),
        ({"multiples": (0, 16, 16)}, "multiple of m is 0"),
        ({"multiples": 16}, "multiples are 16; three are legal"),
        ({"scope": "global"}, "staged in shared or shared.dyn"),
        ({"arch": "sm_75"}, "needs compute capability 8.0"),
        ({"instruction": "mma.m16n8k32.s32.s8"}, "the block float16 into float32"),
    ],
)
def test_refuses_arguments(arguments: dict[str, Any], why: str) -> None:
    sch = s_tir.Schedule(Product().func())
    with pytest.raises(ScheduleError, match=why):
        sch.use_tensor_core("C", **arguments)


def test_distribute_epilogue_refuses_other_blocks() -> None:
    sch = s_tir.Schedule(Product().func())
    with pytest.raises(ScheduleError, match="reads no sums of tensor cores"):
        sch.distribute_epilogue("D")


def test_store_matrix_refuses() -> None:
    sch = s_tir.Schedule(Product(out="float16").func())
    tc = sch.use_tensor_core("C")
    with pytest.raises(ScheduleError, match="is no copy"):
        sch.store_matrix(tc.result)
    with pytest.raises(ScheduleError, match=r"needs compute capability 9.0; sm_80"):
        sch.store_matrix(tc.result, arch="sm_80")
    with pytest.raises(ScheduleError, match=r"copies global to shared.dyn memory"):
        sch.store_matrix(tc.a)


def test_indices_of_64_bits_as_relax_writes_them_give_the_same_kernel() -> None:
    sources = []
    for extent in (tirx.IntImm("int64", 64), 64):
        sch = s_tir.Schedule(te.create_prim_func(multiplied((extent,) * 3)))
        multiply(sch, "C", OPERATOR.default_config() | {"tile_m": 64, "tile_n": 64})
        sources.append(cuda_text(sch))
    assert "mma.sync" in sources[0]
    assert sources[0] == sources[1]


@pytest.mark.parametrize(("operand", "arch"), [("float16", "sm_75"), ("float8_e5m2", "sm_86")])
def test_lowering_for_a_gpu_without_the_instruction_is_refused(operand: str, arch: str) -> None:
    sch = scheduled(Product(operand=operand))
    with pytest.raises(ScheduleError, match=f"Block C_o was scheduled for mma.*; {arch} is older"):
        lower(sch.mod, target=cuda_target(arch))
