"""``sch.cluster``: blocks that are launched together, on GPUs that can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs.mapped import computed
from tests.programs.products import Product, simulated
from tests.programs.running import gives
from tvm_layout_ext import ScheduleError, SimulationError, TargetError, decisions
from tvm_layout_ext.schedules import gemm
from tvm_layout_ext.simulate.compile.host import _geometry

H200 = tlx.cuda_target("sm_90a")


def plain(rows: int = 4) -> s_tir.Schedule:
    return computed((rows, 1024), lambda a, i, j: a[i, j] * 2.0)


def bound(rows: int = 4) -> tuple[s_tir.Schedule, Any, Any]:
    sch = plain(rows)
    y, j = sch.get_loops("B")
    x, thread = sch.split(j, [None, 128])
    sch.bind(y, "blockIdx.y")
    sch.bind(x, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return sch, y, x


def clustered(x_size: int = 2, y_size: int = 1) -> s_tir.Schedule:
    sch, y, x = bound()
    sch.cluster(x, x_size)
    sch.cluster(y, y_size)
    return sch


def launched(sch: s_tir.Schedule) -> dict[str, int]:
    """Extents of the one launch, as the host passes them to TVM's runtime."""
    program = tlx.device_program(sch.mod, target=H200)
    found: list[Any] = []

    def look(call: Any) -> None:
        if getattr(call.op, "name", "") == "tirx.call_ffi_kernel":
            found.append(call)

    ((_, host),) = program.host.functions_items()
    tvm_ffi.structural_walk(host.body, [(tvm.ir.Call, look)])
    (call,) = found
    axes = list(map(str, call.attrs.launch_params))
    return dict(zip(axes, map(int, call.args[-len(axes) :]), strict=True))


@pytest.mark.parametrize(("x_size", "y_size"), [(2, 1), (4, 2), (8, 1), (1, 4)])
def test_the_launch_names_the_cluster(x_size: int, y_size: int) -> None:
    extents = launched(clustered(x_size, y_size))
    assert (extents["blockIdx.x"], extents["blockIdx.y"]) == (8, 4)
    assert extents.get("clusterCtaIdx.x", 1) == x_size
    assert extents.get("clusterCtaIdx.y", 1) == y_size


def test_results_stay_and_the_simulated_gpu_takes_the_launch() -> None:
    a = np.random.default_rng(0).standard_normal((4, 1024)).astype(np.float32)
    with decisions.collect() as made:
        gives(clustered(4, 2), a, None, B=2 * a)
    said = [d.text for d in made if d.maker == "LaunchClusters"]
    assert sorted(said) == [
        "clusters of 2 blocks along blockIdx.y",
        "clusters of 4 blocks along blockIdx.x",
    ]


def test_the_simulated_gpu_refuses_a_grid_that_is_no_multiple() -> None:
    with pytest.raises(SimulationError, match="6 blocks along x is no multiple of a cluster of 4"):
        _geometry({"blockIdx.x": 6, "clusterCtaIdx.x": 4, "threadIdx.x": 32})


@pytest.mark.matrix
@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("size", [2, 4])
def test_a_product_in_clusters(size: int, group: int, slices: int) -> None:
    product = Product(shape=(200, 256, 96), out="float16", epilogue=True)
    config = gemm.OPERATOR.default_config() | {"tile_m": 64, "tile_n": 64, "group": group}
    sch = s_tir.Schedule(product.func())
    gemm.multiply(sch, "C", config | {"cluster": size, "split_k": slices})
    report = simulated(product, sch)
    assert report.bank_conflicts == 0
    if slices == 1:
        assert launched(sch)["clusterCtaIdx.x"] == size


def test_older_gpus_have_no_clusters() -> None:
    with pytest.raises(TargetError, match=r"sm_80 launches no clusters .* capability 9.0"):
        tlx.build(clustered(2).mod, target=tlx.cuda_target("sm_80"))


def test_more_than_eight_blocks_are_refused() -> None:
    with pytest.raises(ScheduleError, match=r"cluster of 16 blocks .* launch up to 8"):
        tlx.build(clustered(4, 4).mod, target=H200)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "size of cluster must be at least 1, not 0"),
        (2.0, "size of cluster must be a whole number, not 2.0"),
        (16, "size of cluster must be at most 8, not 16"),
        (3, "has 8 blocks along blockIdx.x, which is no multiple of a cluster of 3"),
    ],
)
def test_other_sizes_are_refused(size: Any, message: str) -> None:
    sch, _, x = bound()
    with pytest.raises(ScheduleError, match=message):
        sch.cluster(x, size)


def test_other_loops_are_refused() -> None:
    sch = plain()
    with pytest.raises(ScheduleError, match=r"a loop that is bound to blockIdx; .* not bound"):
        sch.cluster(sch.get_loops("B")[0], 2)
    sch, _, _ = bound()
    with pytest.raises(ScheduleError, match=r"j_1 is bound to threadIdx\.x"):
        sch.cluster(sch.get_loops("B")[2], 2)
