"""Run pipelined, swizzled and staged kernels once each, for ``compute-sanitizer`` to watch.

``compute-sanitizer --tool memcheck python -m benchmarks.sanitize``, or ``racecheck``, reports what
the simulated GPU should have reported. Every result is compared with NumPy's.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import tvm

import tvm_layout_ext as tlx
from tvm_layout_ext.schedules import column_sum, gemm, stencil, stream_reduce
from tvm_layout_ext.schedules._coalesced import coalesced
from tvm_layout_ext.schedules.permute import permuted

__all__ = ["kernels", "main"]

_SHAPE = (128, 128, 192)


def kernels() -> Iterator[tuple[str, Any, list[np.ndarray], np.ndarray]]:
    """Name, module, inputs and expected output of each kernel."""
    rng = np.random.default_rng(1)
    tensors = gemm.compute(_SHAPE, "float16")
    factors = gemm.inputs(_SHAPE, "float16", rng)
    small = {knob.name: knob.default for knob in gemm.KNOBS} | {"tile_m": 64, "tile_n": 64}
    for stages, prefetch in product((1, 2, 4), (0, 1)):
        config = small | {"stages": stages, "prefetch": prefetch}
        name = f"gemm in {stages} versions, prefetch {prefetch}"
        yield name, gemm.schedule(tensors, config).mod, factors, gemm.reference(*factors)
    a = rng.standard_normal((300, 200)).astype("float16")
    tensors = permuted(a.shape, "float16", (1, 0))
    yield (
        "ragged transpose",
        coalesced(tensors, {"threads": 0, "vector_bytes": 16}).to_module(tensors),
        [a],
        a.T,
    )
    b = rng.integers(-4, 4, (4096, 256)).astype("float16")
    tensors = column_sum.compute(b.shape, "float16")
    yield (
        "column sum",
        coalesced(tensors, {"threads": 0, "vector_bytes": 16}).to_module(tensors),
        [b],
        b.astype("float32").sum(0),
    )
    for operator, stages in product((stream_reduce.OPERATOR, stencil.OPERATOR), (1, 2, 4)):
        inputs = operator.inputs((250, 1000), "float16", rng)
        config = operator.default_config() | {"stages": stages}
        mod = operator.schedule(operator.compute((250, 1000), "float16"), config).mod
        yield f"{operator.name} in {stages} versions", mod, inputs, operator.reference(*inputs)


def main() -> None:
    """Run them all."""
    device = tvm.cuda(0)
    for name, mod, inputs, expected in kernels():
        run = tlx.build(mod)["main"]
        out = np.zeros(expected.shape, str(mod["main"].params[-1].dtype))
        arrays = [tvm.runtime.tensor(x, device) for x in (*inputs, out)]
        run(*arrays)
        got, wanted = (np.asarray(x, np.float64) for x in (arrays[-1].numpy(), expected))
        np.testing.assert_allclose(got, wanted, rtol=2e-2, atol=2e-2)
        print(f"{name}: right")


if __name__ == "__main__":
    main()
