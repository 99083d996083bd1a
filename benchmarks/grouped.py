"""Time products of groups of rows beside torch's, in one process, under a watchdog of the caller.

``python -m benchmarks.grouped --build FOLDER`` compiles, ``--from FOLDER [--out FILE]`` runs: every
tile of ``grouped_gemm``, checked against float64, ``torch._grouped_mm`` where there is one, and a
loop of ``torch.mm``, in turns. Sizes of groups are drawn at random, and some are empty.
"""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import built_products
from benchmarks.built_products import count_wrong, loaded, name_of
from benchmarks.hopper_check import _view

_DTYPE = "bfloat16"
#: Layers as Mixtral's and as DeepSeek's: groups, rows of all of them, columns, terms.
_SHAPES = (
    (8, 8192, 14336, 4096),
    (8, 8192, 4096, 14336),
    (8, 1024, 14336, 4096),
    (64, 16384, 2816, 2048),
    (64, 16384, 2048, 1408),
    (64, 2048, 2816, 2048),
)
_TILES = (None, "128x256", "128x192", "128x128", "128x64")


def _build(folder: Path, job: tuple[tuple[int, ...], str | None]) -> str:
    shape, tile = job
    wishes = {"tile": tile} if tile else None
    path = folder / name_of(*job)
    return json.dumps(built_products.export(path, "grouped_gemm", shape, _DTYPE, wishes))


def _offsets(groups: int, rows: int) -> np.ndarray:
    """Sizes that vary by about their mean; the second of more than eight groups is empty."""
    rng = np.random.default_rng(groups + rows)
    shares = rng.gamma(2.0, size=groups)
    if groups > 8:
        shares[1] = 0
    sizes = rng.multinomial(rows, shares / shares.sum())
    return np.concatenate([[0], np.cumsum(sizes)]).astype("int32")


def _peers(a: Any, b: Any, offsets: Any, out: Any) -> dict[str, Any]:
    """Torch's ways."""
    import torch

    ends = offsets.tolist()
    parts = [(x, y, b[g].t()) for g, (x, y) in enumerate(pairwise(ends))]

    def loop() -> None:
        for x, y, weight in parts:
            if y > x:
                torch.mm(a[x:y], weight, out=out[x:y])

    found = {"torch.mm a group": loop}
    try:
        call = partial(torch._grouped_mm, a, b.transpose(-2, -1), offs=offsets[1:])
        call()
        torch.cuda.synchronize()
        found["torch._grouped_mm"] = call
    except (AttributeError, RuntimeError, ValueError) as error:
        print(f"  torch._grouped_mm: {str(error).splitlines()[0][:200]}")
    return found


def _run(folder: Path, shape: tuple[int, ...]) -> dict[str, Any]:
    import torch

    groups, m, n, k = shape
    torch.manual_seed(m)
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(groups, n, k, device="cuda", dtype=torch.bfloat16)
    offsets = torch.from_numpy(_offsets(groups, m)).cuda()
    ends = offsets.tolist()
    pairs = list(pairwise(ends))
    calls, wrong = _peers(a, b, offsets, torch.empty(m, n, device="cuda", dtype=a.dtype)), {}
    for tile in _TILES:
        path = folder / name_of(shape, tile)
        if not path.exists():
            continue
        kernel = loaded(path)
        out = torch.full((m, n), float("nan"), dtype=a.dtype, device="cuda")
        kernel(*map(_view, (a, b, offsets, out)))
        torch.cuda.synchronize()
        name = f"ours {tile or 'default'}"
        wrong[name] = 0
        for g, (x, y) in enumerate(pairs):
            want = a[x:y].double() @ b[g].double().t()
            wrong[name] += count_wrong(out[x:y], want, 2**-8, 2e-6 * k)
        calls[name] = partial(kernel, *map(_view, (a, b, offsets, out)))
    tflops = built_products.speeds(calls, 2 * m * n * k)
    sizes = [y - x for x, y in pairs]
    return {"shape": shape, "groups": sizes, "tflops": tflops, "wrong": wrong}


if __name__ == "__main__":
    built_products.main("grouped", __doc__, _SHAPES, _TILES, _build, _run)
