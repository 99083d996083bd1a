"""A GEMM tensorized with TVM's own intrinsics, which become ``ldmatrix`` and ``mma.sync``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import te
from tvm.s_tir import Schedule

from tests.programs.products import multiplied

__all__ = ["CASES", "Case", "gemm"]

_WARPS = 2
_TILE, _DEPTH = 64, 32


@dataclass(frozen=True)
class Case:
    """Types, as TVM's intrinsics shorten them: B is ``N x K`` where ``trans_b``, else ``K x N``."""

    short: str
    sums: str
    trans_b: bool = False
    scope: str = "shared"

    @property
    def dtype(self) -> str:
        return _NAMES[self.short]

    @property
    def total(self) -> str:
        return _NAMES[self.sums]

    @property
    def k(self) -> int:
        return 16 if self.short == "f16" else 32

    def load(self, operand: str) -> str:
        trans = "_trans" if operand == "b" and self.trans_b else ""
        dynamic = "_dyn" if self.scope == "shared.dyn" else ""
        return f"mma_ldmatrix_{self.short}_{operand}{trans}{dynamic}"

    @property
    def mma(self) -> str:
        return f"mma_{self.short}{self.short}{self.sums}{'_trans_b' if self.trans_b else ''}"


_NAMES = {
    "f16": "float16", "f32": "float32", "i8": "int8", "i32": "int32",
    "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
}  # fmt: skip
CASES = {
    "f16": Case("f16", "f32"),
    "f16 dyn": Case("f16", "f32", scope="shared.dyn"),
    "f16 trans": Case("f16", "f32", True),
    "f16 in f16": Case("f16", "f16"),
    "i8": Case("i8", "i32"),
    "i8 trans": Case("i8", "i32", True),
    "e4m3": Case("e4m3", "f32"),
    "e5m2 trans": Case("e5m2", "f32", True),
}


def _product(case: Case, size: int) -> Any:
    tensors = multiplied((size,) * 3, case.dtype, case.total, b_transposed=case.trans_b)
    return te.create_prim_func(tensors)


def _blocked(rows: int, columns: int, inner: Callable[..., Any]) -> Callable[..., Any]:
    """Index map of a matrix of tiles, each of which is spread over a warp."""
    return lambda i, j: (i // rows, j // columns, *inner(i % rows, j % columns))


def _stage(sch: Schedule, block: Any, which: int, loop: Any, case: Case, padding: int) -> None:
    """Copy an operand's tile to shared memory, 16 bytes a thread."""
    copy = sch.cache_read(block, which, case.scope)
    sch.compute_at(copy, loop)
    wide = 16 // (2 if case.dtype == "float16" else 1)
    fused = sch.fuse(*sch.get_loops(copy)[-2:])
    _, z, y, x, vector = sch.split(fused, [None, _WARPS, _WARPS, 32, wide])
    for part, axis in ((z, "threadIdx.z"), (y, "threadIdx.y"), (x, "threadIdx.x")):
        sch.bind(part, axis)
    sch.vectorize(vector)
    if padding:
        sch.storage_align(copy, 0, -2, _TILE, padding)


def _tile(sch: Schedule, block: Any, rows: int, columns: int) -> Any:
    """Split a copy into tiles; the loop that is to be tensorized."""
    i, j = sch.get_loops(block)[-2:]
    i, inner_i = sch.split(i, [None, rows])
    j, inner_j = sch.split(j, [None, columns])
    sch.reorder(i, j, inner_i, inner_j)
    return inner_i


def _split_loops(sch: Schedule, block: Any, case: Case) -> tuple[Any, Any, Any, Any]:
    """Map the loops to blocks and warps; the loops of warps, both of k, and the tensor tile."""
    i, j, k = sch.get_loops(block)
    bi, wi, i, ti = sch.split(i, [None, _WARPS, _TILE // 16 // _WARPS, 16])
    bj, wj, j, tj = sch.split(j, [None, _WARPS, _TILE // 16 // _WARPS, 16])
    outer, k, tk = sch.split(k, [None, _DEPTH // case.k, case.k])
    sch.reorder(bi, bj, wi, wj, outer, k, i, j, ti, tj, tk)
    axes = ("blockIdx.y", "blockIdx.x", "threadIdx.z", "threadIdx.y")
    for loop, axis in zip((bi, bj, wi, wj), axes, strict=True):
        sch.bind(loop, axis)
    return wj, outer, k, ti


def gemm(name: str, size: int = 128, padding: int = 0, marked: bool = False) -> Schedule:
    """``C = A @ B`` in 64x64 tiles of four warps, in steps of 32 along K; all matrices are square.

    Rows of shared memory are ``padding`` elements longer than a multiple of 64, if any. A
    ``marked`` function is treated by the package's passes, which lower its warp buffers in full.
    """
    # Not at the top of the file: TVM parses all its intrinsics here, which takes many seconds.
    import tvm.s_tir.tensor_intrin.cuda as intrin

    case = CASES[name]
    func = _product(case, size)
    sch = Schedule(func.with_attr("layout_ext.annotated", 1) if marked else func)
    block = sch.get_sblock("C")
    warp, outer, inner, tile = _split_loops(sch, block, case)
    for which in (0, 1):
        _stage(sch, block, which, outer, case, padding)
    a, b = (sch.cache_read(block, which, "warp") for which in (0, 1))
    c = sch.cache_write(block, 0, "warp")
    sch.compute_at(a, inner)
    sch.compute_at(b, inner)
    sch.reverse_compute_at(c, warp)
    lay_c = _blocked(16, 16, intrin.shared_16x16_to_ldmatrix_32x8_layout)
    lay_a = lay_b = lay_c
    if case.k == 32:
        lay_a = _blocked(16, 32, intrin.shared_16x32_to_ldmatrix_32x16_layout)
        across = _blocked(32, 16, intrin.shared_32x16_to_ldmatrix_32x16_layout)
        lay_b = lay_a if case.trans_b else across
    tiles = [
        (_tile(sch, a, 16, case.k), case.load("a")),
        (_tile(sch, b, *((16, case.k) if case.trans_b else (case.k, 16))), case.load("b")),
        (_tile(sch, c, 16, 16), f"mma_store_16x16_{case.sums}_global_"),
        (tile, case.mma),
    ]
    sch.transform_layout(a, ("write", 0), lay_a)
    sch.transform_layout(b, ("write", 0), lay_b)
    sch.transform_layout(c, ("read", 0), lay_c)
    start = sch.decompose_reduction(block, outer)
    for loop, intrinsic in [*tiles, (sch.get_loops(start)[-2], f"mma_fill_16x16_{case.sums}")]:
        sch.tensorize(loop, intrinsic)
    return sch
