"""What a schedule says about a launch reaches the passes that act on it, in grids of any dims."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import s_tir, te

import tvm_layout_ext as tlx
from tests.programs.emitted import cuda_text
from tests.programs.mapped import computed, share
from tvm_layout_ext import decisions
from tvm_layout_ext.ir.annotations import MARK, MIN_BLOCKS
from tvm_layout_ext.transform import HoistGridAnnotations


def scheduled() -> s_tir.Schedule:
    """A grid of three dims, with three notes."""
    sch = computed((2, 6, 128), lambda a, z, i, j: a[z, i, j] * 2.0)
    z, y, j = sch.get_loops("B")
    x, thread = sch.split(j, [None, 32])
    sch.bind(z, "blockIdx.z")
    sch.rasterize(y, x, 4)
    sch.cluster(x, 2)
    sch.annotate(x, MIN_BLOCKS, 3)
    sch.bind(thread, "threadIdx.x")
    return sch


def marked(sch: s_tir.Schedule) -> tvm.IRModule:
    return tvm.IRModule({"main": sch.mod["main"].with_attr(MARK, 1)})


def test_each_kernel_keeps_its_own() -> None:
    a = te.placeholder((64,), "float32", "A")
    b = te.compute((64,), lambda i: a[i] * 2.0, "B")
    c = te.compute((64,), lambda i: b[i] + 1.0, "C")
    sch = s_tir.Schedule(te.create_prim_func([a, c]))
    for name, blocks in (("B", 2), ("C", 5)):
        sch.annotate(share(sch, 32, block=name), MIN_BLOCKS, blocks)
    after = HoistGridAnnotations()(marked(sch))["main"]
    first, second = after.body.block.body.seq
    assert [int(loop.annotations[MIN_BLOCKS]) for loop in (first, second)] == [2, 5]


def test_a_grid_of_three_dims_is_rasterized_bounded_and_clustered() -> None:
    """TVM's own pass would keep one of the three notes."""
    with decisions.collect() as made:
        source = cuda_text(scheduled())
    assert "__launch_bounds__(32, 3)" in source
    said = {d.maker: d.text for d in made}
    assert said["RasterizeBlocks"] == "blocks run in groups of 4 rows"
    assert said["LaunchClusters"] == "clusters of 2 blocks along blockIdx.x"
    assert "blockIdx.y) >> 2" in source


def test_a_rasterized_batch_computes_every_tile() -> None:
    a = np.arange(2 * 6 * 128, dtype=np.float32).reshape(2, 6, 128)
    (got,) = tlx.simulate(scheduled().mod, a, None).outputs.values()
    np.testing.assert_array_equal(got, 2 * a)
