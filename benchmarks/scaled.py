"""Time fp8 with scales of blocks beside fp8 with one scale, ours and cuBLAS's, under a watchdog.

``python -m benchmarks.scaled --build FOLDER`` compiles, ``--from FOLDER [--out FILE]`` runs: every
tile and cluster of ``gemm_scaled``, checked against float64, ``gemm_nt`` by default, and
``torch._scaled_mm`` with scales of blocks and of whole tensors, in turns.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import built_products
from benchmarks.built_products import count_wrong, loaded, name_of
from benchmarks.hopper_check import _view

_DTYPE = "float8_e4m3fn"
#: Squares, and products of DeepSeek-V3's layers.
_SHAPES = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (4096, 7168, 16384),
    (4096, 4096, 7168),
    (4096, 24576, 1536),
    (4096, 7168, 2048),
    (512, 7168, 2048),
)
#: Tiles and clusters of the kernels with scales; ``None`` are the defaults of either operator.
_VARIANTS: tuple[tuple[str, dict[str, Any] | None], ...] = (
    ("gemm_nt", None),
    ("gemm_scaled", None),
    *(
        ("gemm_scaled", {"tile": tile, "cluster": cluster})
        for tile in ("256x128", "128x128", "128x64")
        for cluster in (1, 2)
    ),
)


def _build(folder: Path, job: tuple[tuple[int, ...], int]) -> str:
    shape, number = job
    name, wishes = _VARIANTS[number]
    config = built_products.export(folder / name_of(*job), name, shape, _DTYPE, wishes)
    kept = ("tile", "wgmma", "split_k", "cluster")
    return json.dumps([name, {key: config[key] for key in kept if key in config}])


def _operands(shape: tuple[int, ...]) -> tuple[Any, Any, Any, Any, Any]:
    """Operands, scales, and the first rows of the result in float64."""
    import torch

    m, n, k = shape
    torch.manual_seed(m)
    a, b = (torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn) for rows in (m, n))
    sa, sb = (torch.rand(rows, k // 128, device="cuda") + 0.5 for rows in (m, -(-n // 128)))
    wide = sb.double().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)
    left = a[:256].double() * sa[:256].double().repeat_interleave(128, 1)
    return a, b, sa, sb, left @ (b.double() * wide).t()


def _peers(a: Any, b: Any, sa: Any, sb: Any) -> dict[str, Any]:
    """Torch's products; those that it refuses are left out."""
    import torch

    one = torch.ones((), device="cuda")
    turned = sa.t().contiguous().t()
    found = {}
    for name, scales, fast in (
        ("cublas one scale", (one, one), True),
        ("cublas blocks", (turned, sb.t()), False),
    ):
        call = partial(
            torch._scaled_mm, a, b.t(), *scales, out_dtype=torch.bfloat16, use_fast_accum=fast
        )
        try:
            call()
            torch.cuda.synchronize()
            found[name] = call
        except (RuntimeError, ValueError) as error:
            print(f"  {name}: {str(error).splitlines()[0][:200]}")
    return found


def _run(folder: Path, shape: tuple[int, ...]) -> dict[str, Any]:
    import torch

    a, b, sa, sb, want = _operands(shape)
    m, n, k = shape
    calls, wrong = _peers(a, b, sa, sb), {}
    for number, (name, wishes) in enumerate(_VARIANTS):
        path = folder / name_of(shape, number)
        if not path.exists():
            continue
        scaled = name == "gemm_scaled"
        kernel = loaded(path)
        dtype = torch.bfloat16 if scaled else torch.float16
        out = torch.full((m, n), float("nan"), dtype=dtype, device="cuda")
        views = [_view(one) for one in (a, b, *((sa, sb) if scaled else ()), out)]
        kernel(*views)
        torch.cuda.synchronize()
        full = " ".join([name, *map(str, (wishes or {"": "default"}).values())])
        if scaled:
            wrong[full] = count_wrong(out[:256], want, 2**-8, 2**-10 * k)
            kernel(*views)
            wrong[full] += int(out.isnan().sum())
        calls[full] = partial(kernel, *views)
    tflops = built_products.speeds(calls, 2 * m * n * k)
    return {"shape": shape, "tflops": tflops, "wrong": wrong}


if __name__ == "__main__":
    built_products.main("scaled", __doc__, _SHAPES, range(len(_VARIANTS)), _build, _run)
