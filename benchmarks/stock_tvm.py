"""The tensor-core GEMM as users of TVM 0.27 write it by hand, with nothing but what TVM has.

It is a peer of :mod:`benchmarks.gemm`. Nothing of ``tvm_layout_ext`` takes part: the schedule uses
``storage_align`` or TVM's ``permuted_layout`` for shared memory, ``software_pipeline_*`` with
asynchronous copies for the stages, and TVM's registered ``ldmatrix``, ``mma.sync``, fill and store
intrinsics; :meth:`StockCase.kernels` lowers by TVM's default pipeline itself. The result leaves
as ours does: sums of float32, through shared memory, to float16 in vectors of 16 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.gemm_kernels import ARCH, Case

__all__ = ["CANDIDATES", "PREFIX", "StockCase", "copies_asynchronously"]

#: What the names of these configurations begin with.
PREFIX = "stock TVM"
_TENSOR = 16
#: Elements that a thread copies at a time: 16 bytes.
_VECTOR = 8
#: ``storage_align`` of a row: 16 bytes more than a multiple of 64 bytes, so that the eight rows
#: of an ``ldmatrix`` begin in different banks.
_ALIGN = (32, 8)
_WARPS = ("threadIdx.y", "threadIdx.z")


def _config(tile: tuple[int, int, int], warps: tuple[int, int], stages: int, shared: str) -> str:
    m, n, k = tile
    return (
        f"{PREFIX} tile_m={m} tile_n={n} tile_k={k} warps_m={warps[0]} warps_n={warps[1]} "
        f"stages={stages} shared={shared}"
    )


#: By hand, one would try these: padded, TVM's swizzle, and plain; shallow and deep; three tiles.
CANDIDATES = (
    _config((128, 128, 64), (2, 2), 3, "pad"),
    _config((128, 128, 64), (2, 2), 3, "permuted"),
    _config((128, 128, 64), (2, 2), 3, "none"),
    _config((128, 128, 64), (2, 2), 2, "pad"),
    _config((128, 128, 32), (2, 2), 3, "pad"),
    _config((128, 128, 32), (2, 2), 4, "pad"),
    _config((128, 128, 32), (2, 2), 4, "permuted"),
    _config((128, 256, 32), (2, 4), 4, "pad"),
    _config((128, 256, 64), (2, 4), 3, "permuted"),
    _config((256, 128, 32), (4, 2), 4, "pad"),
)


@dataclass(frozen=True)
class StockCase(Case):
    """``C = A @ B^T`` in float16, scheduled by TVM's primitives under a configuration of these."""

    def knobs(self) -> dict[str, Any]:
        """Return the configuration by name."""
        given = dict(part.split("=") for part in self.config.removeprefix(PREFIX).split())
        return {name: int(text) if text.isdigit() else text for name, text in given.items()}

    def schedule(self) -> Any:
        """TensorIR schedule of the product."""
        return _Maker(self.shape, self.knobs()).run()

    def kernels(self) -> dict[str, Any]:
        """Device functions, as TVM's default pipeline gives them to its code generation."""
        import tvm
        from tvm import tirx
        from tvm.s_tir.pipeline import default_s_tir_pipeline
        from tvm.tirx.build import split_host_device_mods

        target = tvm.target.Target({"kind": "cuda", "arch": ARCH})
        mod = tirx.transform.BindTarget(target.with_host("c"))(self.schedule().mod)
        lowering, _, finish = default_s_tir_pipeline()
        with copies_asynchronously():
            _, device = split_host_device_mods(lowering(mod))
            (kernels,) = (finish()(module).functions for module in device.values())
        return {variable.name_hint: function for variable, function in kernels.items()}


def copies_asynchronously() -> Any:
    """TVM's option under which copies of the pipeline's first stage become ``cp.async``."""
    import tvm

    return tvm.transform.PassContext(config={"tirx.use_async_copy": True})


def _workload(shape: tuple[int, int, int]) -> Any:
    from tvm import te

    m, n, k = shape
    a = te.placeholder((m, k), "float16", name="A")
    b = te.placeholder((n, k), "float16", name="B")
    axis = te.reduce_axis((0, k), "k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(a[i, axis].astype("float32") * b[j, axis].astype("float32"), axis=axis)

    product = te.compute((m, n), element, name="product")
    c = te.compute((m, n), lambda i, j: product[i, j].astype("float16"), name="C")
    return te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")


def _in_lanes(i: Any, j: Any) -> list[Any]:
    """Element of a fragment: its 16x16 tile, the lane that holds it, and the lane's register."""
    from tvm.s_tir.tensor_intrin.cuda import shared_16x16_to_ldmatrix_32x8_layout

    lane, register = shared_16x16_to_ldmatrix_32x8_layout(i % _TENSOR, j % _TENSOR)
    return [i // _TENSOR, j // _TENSOR, lane, register]


class _Maker:
    """The schedule's parts; ``run`` applies them in order."""

    def __init__(self, shape: tuple[int, int, int], knobs: dict[str, Any]) -> None:
        from tvm import s_tir
        from tvm.s_tir.tensor_intrin.cuda import get_mma_intrin_group

        self.knobs = knobs
        self.sch = s_tir.Schedule(_workload(shape))
        self.intrinsics = get_mma_intrin_group(
            "shared.dyn", "shared.dyn", "float16", "float32", False, True
        )

    def run(self) -> Any:
        """Schedule the product."""
        self._tile()
        for operand in range(2):
            self._stage(operand)
        fragments = [self.sch.cache_read(self.outer, operand, "warp") for operand in range(2)]
        for fragment in fragments:
            self.sch.compute_at(fragment, self.step)
        store = self._epilogue()
        self.sch.decompose_reduction(self.outer, self.chunk)
        for fragment, name in zip(fragments, ("load_a", "load_b"), strict=True):
            self._put(fragment, "write", name)
        self._put(store, "read", "store")
        init = self.sch.get_sblock("product_init")
        self.sch.tensorize(self.sch.get_loops(self.inner)[-3], self.intrinsics["compute"])
        self.sch.tensorize(self.sch.get_loops(init)[-2], self.intrinsics["init"])
        self._pipeline()
        return self.sch

    def _tile(self) -> None:
        """Blocks, warps, chunks of K, and tiles of the instruction."""
        sch, knobs = self.sch, self.knobs
        self.inner = sch.get_sblock("product")
        (i, ii), (j, jj), (k, kk) = (
            sch.split(loop, [None, _TENSOR]) for loop in sch.get_loops(self.inner)
        )
        sch.reorder(i, j, k, ii, jj, kk)
        self.outer = sch.blockize(ii)
        of_warp = (knobs[f"tile_{x}"] // knobs[f"warps_{x}"] // _TENSOR for x in "mn")
        block_i, warp_i, i = sch.split(i, [None, knobs["warps_m"], next(of_warp)])
        block_j, warp_j, j = sch.split(j, [None, knobs["warps_n"], next(of_warp)])
        chunk, step = sch.split(k, [None, knobs["tile_k"] // _TENSOR])
        sch.reorder(block_i, block_j, warp_i, warp_j, chunk, step, i, j)
        self._bind(("blockIdx.y", "blockIdx.x"), (block_i, block_j))
        self._bind(_WARPS, (warp_i, warp_j))
        self.warp, self.chunk, self.step = warp_j, chunk, step

    def _bind(self, threads: tuple[str, ...], loops: tuple[Any, ...]) -> None:
        for thread, loop in zip(threads, loops, strict=True):
            self.sch.bind(loop, thread)

    def _stage(self, operand: int) -> None:
        """Copy an operand's part of a chunk to shared memory with all threads."""
        sch, knobs = self.sch, self.knobs
        copy = sch.cache_read(self.outer, operand, "shared.dyn")
        sch.compute_at(copy, self.chunk)
        fused = sch.fuse(*sch.get_loops(copy)[-2:])
        factors = [None, knobs["warps_m"], knobs["warps_n"], 32, _VECTOR]
        _, *threads, vector = sch.split(fused, factors)
        self._bind((*_WARPS, "threadIdx.x"), tuple(threads))
        sch.vectorize(vector)
        if knobs["shared"] == "pad":
            sch.storage_align(copy, 0, -2, *_ALIGN)
        if knobs["shared"] == "permuted":
            sch.annotate(copy, "permuted_layout", "copy")

    def _epilogue(self) -> Any:
        """Sums to shared memory and, rounded, on to global memory; return the first block."""
        sch = self.sch
        sch.set_scope(self.outer, 0, "shared.dyn")
        store = sch.cache_write(self.outer, 0, "warp")
        sch.reverse_compute_at(store, self.warp)
        cast = sch.get_sblock("C")
        sch.reverse_compute_at(cast, self.warp)
        _, lane, vector = sch.split(sch.fuse(*sch.get_loops(cast)[-2:]), [None, 32, _VECTOR])
        sch.bind(lane, "threadIdx.x")
        sch.vectorize(vector)
        return store

    def _put(self, block: Any, side: str, name: str) -> None:
        """Lay the fragment that a block writes or reads out over lanes; use an intrinsic for it."""
        sch = self.sch
        tiled = [sch.split(loop, [None, _TENSOR]) for loop in sch.get_loops(block)[-2:]]
        (i, ii), (j, jj) = tiled
        sch.reorder(i, j, ii, jj)
        sch.transform_layout(block, (side, 0), _in_lanes)
        outer = sch.blockize(ii)
        sch.tensorize(outer, self.intrinsics[name])
        if side == "read":
            sch.storage_align(outer, 0, -2, *_ALIGN)
        elif self.knobs["shared"] == "permuted":
            sch.annotate(outer, "permuted_layout", "fragment")

    def _pipeline(self) -> None:
        """Two copies and the products are the chunk's three statements."""
        depth = self.knobs["stages"] - 1
        for key, values in (("stage", [0, 0, depth]), ("order", [0, 1, 2]), ("async_stages", [0])):
            self.sch.annotate(self.chunk, f"software_pipeline_{key}", values)
