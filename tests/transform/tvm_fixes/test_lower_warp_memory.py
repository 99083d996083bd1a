from __future__ import annotations

import numpy as np
import tvm

from tests.pipeline.corpus import two_warp_buffers
from tests.programs.emitted import cuda_text
from tests.programs.running import gives


def _annotated() -> tvm.IRModule:
    mod = two_warp_buffers()
    return tvm.IRModule({"main": mod["main"].with_attr("layout_ext.test", 1)})


def test_only_the_first_warp_buffer_was_lowered() -> None:
    """TVM 0.27 leaves the second as 32 elements a thread, and reads its own, unwritten copy."""
    assert "q_ptr[32]" in cuda_text(two_warp_buffers())
    fixed = cuda_text(_annotated())
    assert "q_ptr[1]" in fixed
    assert fixed[fixed.rindex("__global__") :].count("__shfl_sync") == 2


def test_the_exchange_is_right_on_the_simulated_gpu() -> None:
    a = np.random.default_rng(0).standard_normal(32).astype("float32")
    lanes = np.arange(32)
    gives(_annotated(), a, None, B=(a[lanes ^ 1] + 1)[lanes ^ 2])
