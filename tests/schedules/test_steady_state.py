"""An iteration of the f16 GEMM, at every depth, as the compiler gets it and as it reports it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import tvm_layout_ext as tlx
from tvm_layout_ext.schedules import gemm

SHAPE = (512, 512, 512)
TILE = {"tile_m": 128, "tile_n": 128, "tile_k": 32, "warps_m": 2, "warps_n": 2}
#: Bytes of the tiles of A and B, 16 a copy, shared out to 128 threads.
COPIES = (128 + 128) * 32 * 2 // 16 // 128
#: Products of 16 x 8 x 16 in a warp's 64 x 64 x 32.
PRODUCTS = 4 * 8 * 2


def emitted(stages: int, prefetch: int) -> str:
    """CUDA source."""
    config = gemm.OPERATOR.default_config() | TILE | {"stages": stages, "prefetch": prefetch}
    sch = gemm.schedule(gemm.compute(SHAPE, "float16"), config)
    built = tlx.build(sch.mod, target=tlx.cuda_target("sm_90a"))
    return str(built.mod.imports[0].inspect_source())


def loop_along_k(kernel: str) -> str:
    """Its first loop, up to the brace that ends it; the second one stores the result."""
    start = kernel.index("{", kernel.index("\n  for (int "))
    depth = 0
    for end in range(start, len(kernel)):
        depth += {"{": 1, "}": -1}.get(kernel[end], 0)
        if depth == 0:
            return kernel[start:end]
    raise AssertionError("no end of the loop")


@pytest.mark.matrix
@pytest.mark.parametrize(("stages", "prefetch"), [(2, 0), (3, 0), (4, 0), (6, 0), (3, 1), (4, 1)])
def test_an_iteration_has_one_barrier_one_wait_and_copies_of_16_bytes(
    stages: int, prefetch: int
) -> None:
    kernel = emitted(stages, prefetch).partition("main_kernel")[2]
    loop = loop_along_k(kernel)
    assert loop.count("mma.sync") == PRODUCTS
    assert loop.count("__syncthreads()") == 1
    assert re.findall(r"wait_group_(\d)\(\)", loop) == [str(stages - 2)]
    assert loop.count("cp_async_cg_async_cg_shared_global_16(") == COPIES
    assert not re.search(r"cp_async_ca|shared_global_[48]\(", kernel)


@pytest.mark.matrix
@pytest.mark.nvcc
@pytest.mark.parametrize(("stages", "prefetch"), [(4, 0), (3, 1), (4, 1)])
def test_nothing_goes_to_local_memory(stages: int, prefetch: int, tmp_path: Path) -> None:
    """Neither the stack, of which PTX declares a depot, nor what ptxas would spill."""
    (tmp_path / "k.cu").write_text(emitted(stages, prefetch))
    command = ["nvcc", "-arch=sm_90a", "-cubin", "--keep", "-Xptxas", "-v", "-o", "k.cubin", "k.cu"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in ran.stderr
    ptx = (tmp_path / "k.ptx").read_text()
    assert "cp.async.cg.shared.global" in ptx
    assert not re.search(r"\.local\b", ptx)
