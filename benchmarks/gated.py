"""Time gated products beside torch.compile's and our two kernels, in one process.

``python -m benchmarks.gated --build FOLDER`` compiles, ``--from FOLDER [--out FILE]`` runs: the
default of ``gemm_gated`` and other tiles, checked against float64, what a model has without it (a
product of both weights, then the gate), torch.compile of the same, and cuBLAS's product alone, in
turns. Weights are others in every call, so that they come from memory.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import tvm
from tvm.relax.frontend import nn

import tvm_layout_ext as tlx
from benchmarks import built_products
from benchmarks.built_products import WEIGHTS, count_wrong, loaded, name_of
from benchmarks.hopper_check import _turns, _view
from tvm_layout_ext.models.pipeline import lowered_passes

_DTYPE = "float16"
#: LLaMA's MLP for a prompt, for tokens of a batch, and a small one: rows, columns, terms.
SHAPES = (
    (2048, 11008, 4096),
    (16, 11008, 4096),
    (512, 2816, 1024),
    (4, 11008, 4096),
    (128, 11008, 4096),
    (2048, 14336, 4096),
)
_LARGE = ("128x128", "128x112", "128x96", "128x88", "128x64", "256x80", "256x64", "64x128")
_SMALL = ("8x64", "16x64", "16x128", "64x64")
#: Tiles beside the default, by the rows of a shape.
VARIANTS = (None, "apart", *dict.fromkeys((*_LARGE, *_SMALL)))


def wanted(shape: tuple[int, ...], tile: str | None) -> bool:
    """Whether a variant is one of a shape."""
    return tile in (None, "apart", *(_LARGE if shape[0] > 64 else _SMALL))


class _Gate(nn.Module):  # type: ignore[misc]
    def __init__(self, n: int, k: int) -> None:
        self.gate = nn.Linear(k, 2 * n, bias=False, dtype=_DTYPE)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        gate, up = nn.op.split(self.gate(x), 2, axis=-1)
        return nn.op.silu(gate) * up


def build(folder: Path, job: tuple[tuple[int, ...], str | None]) -> str:
    """Compile a variant; its configuration."""
    shape, tile = job
    path = folder / name_of(*job)
    if not wanted(*job):
        return "not of this shape"
    if tile == "apart":
        return json.dumps(_build_apart(path, shape))
    wishes = {"tile": tile} if tile else None
    return json.dumps(built_products.export(path, "gemm_gated", shape, _DTYPE, wishes))


def _build_apart(path: Path, shape: tuple[int, ...]) -> dict[str, str]:
    """The product, and the gate behind it, as a model has them whose products stay apart."""
    os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
    m, n, k = shape
    spec = {"forward": {"x": nn.spec.Tensor((m, k), _DTYPE)}}
    mod, _ = _Gate(n, k).export_tvm(spec=spec)
    target = tlx.cuda_target("sm_90a")
    schedule = tlx.DefaultSchedule()
    passes = [one for one in lowered_passes(target) if "GatedProducts" not in str(one.info.name)]
    with target:
        mod = schedule(tvm.transform.Sequential(passes)(mod))
    for gv, func in mod.functions_items():
        if isinstance(func, tvm.tirx.PrimFunc):
            which = "product" if "matmul" in gv.name_hint else "gate"
            func = func.with_attr("global_symbol", "main").without_attr("private")
            tlx.build(func, target=target).export_library(str(path.with_suffix(f".{which}.so")))
    return {one.name: one.text for one in schedule.choices}


def prepared(folder: Path, shape: tuple[int, ...]) -> tuple[dict[str, Any], dict[str, int]]:
    """What runs a shape, by contestant, and how many results of each of ours are wrong."""
    import torch

    m, n, k = shape
    torch.manual_seed(m)
    x = torch.randn(m, k, device="cuda", dtype=torch.float16)
    count = max(2, -(-WEIGHTS // (4 * n * k)))
    weights = [
        torch.randn(2 * n, k, device="cuda", dtype=torch.float16) * k**-0.5 for _ in range(count)
    ]
    want = _gated(torch, *(x.double() @ weights[0].double().t()).split(n, 1))
    ours, wrong, calls = {}, {}, {}
    for tile in VARIANTS:
        path = folder / name_of(shape, tile)
        if tile == "apart":
            made = _apart(path, x, weights, n)
        elif path.exists():
            out = torch.full((1, m, n), float("nan"), dtype=x.dtype, device="cuda")
            kernel = loaded(path)
            views = [_view(w.view(2, n, k)) for w in weights]
            made = out, [partial(kernel, _view(x), w, _view(out)) for w in views]
        else:
            continue
        name = f"ours {tile or 'default'}"
        out, turns = made
        turns[0]()
        torch.cuda.synchronize()
        wrong[name] = count_wrong(out.view(m, n), want, 2**-8, 2e-3)
        ours[name] = turns
    for name, turns in (ours | _peers(x, weights, n)).items():
        calls[name] = _turns(turns)
    return calls, wrong


def _gated(torch: Any, gate: Any, up: Any) -> Any:
    return torch.nn.functional.silu(gate) * up


def _apart(path: Path, x: Any, weights: list[Any], n: int) -> tuple[Any, list[Any]]:
    import torch

    both = torch.empty(x.shape[0], 2 * n, dtype=x.dtype, device="cuda")
    out = torch.full((x.shape[0], n), float("nan"), dtype=x.dtype, device="cuda")
    product, gate = (loaded(path.with_suffix(f".{which}.so")) for which in ("product", "gate"))
    views = tuple(map(_view, (x, both, out)))

    def one(weight: Any) -> None:
        product(views[0], weight, views[1])
        gate(views[1], views[2])

    return out, [partial(one, _view(w)) for w in weights]


def _peers(x: Any, weights: list[Any], n: int) -> dict[str, list[Any]]:
    """Torch's ways."""
    import torch

    fast = torch.compile(
        lambda x, w: _gated(torch, *torch.nn.functional.linear(x, w).split(n, 1)), dynamic=False
    )
    fast(x, weights[0])
    return {
        "torch.compile": [partial(fast, x, w) for w in weights],
        "cuBLAS, product alone": [partial(torch.nn.functional.linear, x, w) for w in weights],
    }


def run(folder: Path, shape: tuple[int, ...]) -> dict[str, Any]:
    """Microseconds of each contestant."""
    calls, wrong = prepared(folder, shape)
    flops = 4 * shape[0] * shape[1] * shape[2]
    least = 6e14 / 4e12 * 4 * shape[1] * shape[2]  # As long as its weights take, at least.
    return built_products.row_of(shape, calls, wrong, max(flops, least))


if __name__ == "__main__":
    built_products.main("gated", __doc__, SHAPES, VARIANTS, build, run)
