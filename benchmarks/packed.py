"""Time products of some rows by weights of 4 bits, of every kernel that there is, in one process.

``python -m benchmarks.packed --build FOLDER`` compiles, ``--from FOLDER [--out FILE]`` runs:
weights unpacked in registers and multiplied by ``mma.sync``, or by threads, or unpacked into memory
before tensor cores multiply them; beside cuBLAS's product by weights of float16. Where the columns
are those of a gate and of what it is multiplied by, ``gated`` is the kernel that has both. All
weights are others in every call, so that they come from memory; results are checked against
float64.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.relax.frontend import nn

import tvm_layout_ext as tlx
from benchmarks import built_products
from benchmarks.built_products import WEIGHTS, count_wrong, loaded, name_of
from benchmarks.hopper_check import _turns, _view
from benchmarks.model_zoo import PackedLinear
from tvm_layout_ext.ir.tidy import tidy
from tvm_layout_ext.models import rules
from tvm_layout_ext.models.pipeline import lowered_passes

#: Columns and terms: LLaMA's layers, and a gate of Qwen3-0.6B.
_GATES = ((28672, 4096), (6144, 1024))
_LAYERS = (*_GATES[:1], (4096, 14336), (6144, 4096), (4096, 4096), *_GATES[1:])
_ROWS = (1, 4, 8, 16, 32, 64)
SHAPES = tuple((m, n, k) for n, k in _LAYERS for m in _ROWS)
#: Rules that are asked for a schedule, and both halves of a product as a gate.
VARIANTS = ("packed weights", "packed weights on threads", "warpgroups", "gated")
_GROUP = 32


class _Net(nn.Module):  # type: ignore[misc]
    def __init__(self, k: int, n: int, is_gated: bool) -> None:
        self.layer, self.is_gated = PackedLinear(k, n), is_gated

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        if not self.is_gated:
            return self.layer(x)
        gate, up = nn.op.split(self.layer(x), 2, axis=-1)
        return nn.op.silu(gate) * up


def build(folder: Path, job: tuple[tuple[int, ...], str]) -> str:
    """Compile a variant; what was scheduled."""
    os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
    (m, n, k), variant = job
    is_gated = variant == "gated"
    if is_gated and (n, k) not in _GATES:
        return "not of this shape"
    spec = {"forward": {"x": nn.spec.Tensor((1, m, k), "float16")}}
    mod, _ = _Net(k, n, is_gated).export_tvm(spec=spec)
    target = tlx.cuda_target("sm_90a")
    with target:
        mod = tvm.transform.Sequential(lowered_passes(target))(mod)
        (func,) = (one for _, one in mod.functions_items() if isinstance(one, tvm.tirx.PrimFunc))
        found = rules.RULES[VARIANTS[0] if is_gated else variant](tidy(func), target)
    if found is None:
        return "not of this shape"
    func = found.function.with_attr("global_symbol", "main").without_attr("private")
    tlx.build(func, target=target).export_library(str(folder / name_of(*job)))
    return found.text


def unpacked(torch: Any, packed: Any, scale: Any) -> Any:
    """The weights in float64."""
    shifts = torch.arange(0, 32, 4, device=packed.device)
    found = packed.view(torch.int32)[..., None] >> shifts & 15
    weight = (found.flatten(1) - 7).double() * scale.double().repeat_interleave(_GROUP, 1)
    return weight.half().double()


def run(folder: Path, shape: tuple[int, ...]) -> dict[str, Any]:
    """Microseconds of each contestant."""
    import torch

    m, n, k = shape
    torch.manual_seed(m + n)
    rng = np.random.default_rng(m)
    count = max(2, -(-WEIGHTS // (n * k // 2)))
    x = torch.randn(m, k, device="cuda", dtype=torch.float16)
    words = [rng.integers(0, 1 << 32, (n, k // 8), np.uint32) for _ in range(2)]
    packed = [torch.from_numpy(words[i % 2].view(np.int32)).cuda() for i in range(count)]
    scales = [torch.rand(n, k // _GROUP, device="cuda").half() * 0.01 for _ in range(count)]
    product = x.double() @ unpacked(torch, packed[0], scales[0]).t()
    gate, up = product.split(n // 2, 1)
    gated = torch.nn.functional.silu(gate) * up
    calls, wrong = {}, {}
    for variant in VARIANTS:
        path = folder / name_of(shape, variant)
        if not path.exists():
            continue
        is_gated = variant == "gated"
        want, rows = gated if is_gated else product, _view(x[None])
        out = torch.full((1, *want.shape), float("nan"), dtype=x.dtype, device="cuda")
        kernel, result = loaded(path), _view(out)
        views = [
            (_view(p)._create_view((n, k // 8), "uint32"), _view(s))
            for p, s in zip(packed, scales, strict=True)
        ]
        given = [(_view(x), *v, result) if is_gated else (*v, rows, result) for v in views]
        kernel(*given[0])
        torch.cuda.synchronize()
        # A gate is made of products that are rounded.
        relative = 2**-7 if is_gated else 2**-9
        wrong[variant] = count_wrong(out[0], want, relative, 2e-3 * want.abs().mean())
        calls[variant] = _turns([partial(kernel, *one) for one in given])
    halves = [torch.randn(n, k, device="cuda", dtype=torch.float16) for _ in range(2)]
    halves = halves * max(1, -(-WEIGHTS // (n * k * 4)))
    calls["cuBLAS, float16"] = _turns([partial(torch.nn.functional.linear, x, w) for w in halves])
    return built_products.row_of(shape, calls, wrong, 6e14 / 3e12 * n * k)


if __name__ == "__main__":
    built_products.main("packed", __doc__, SHAPES, VARIANTS, build, run)
