"""Time products of many rows by few columns and terms, which move more than they multiply.

``python -m benchmarks.thin --build FOLDER`` compiles, ``--from FOLDER [--out FILE]`` runs:
``gemm_nt`` in ``float16`` by default, by tiles of 32 and 64 columns and by ``mma.sync``, checked
against float64, and cuBLAS, in turns.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import built_products
from benchmarks.built_products import count_wrong, loaded, name_of, row_of
from benchmarks.hopper_check import _view

#: First layers of networks for images and volumes, and their convolutions of one pixel.
_SHAPES = (
    (1769472, 32, 32),
    (401408, 32, 32),
    (200704, 64, 64),
    (401408, 24, 96),
)
_TILES = (None, "128x32", "128x64", "none")


def _build(folder: Path, job: tuple[tuple[int, ...], Any]) -> str:
    shape, tile = job
    wishes = {} if tile is None else {"wgmma": tile}
    config = built_products.export(folder / name_of(*job), "gemm_nt", shape, "float16", wishes)
    return json.dumps(config["wgmma"])


def _run(folder: Path, shape: tuple[int, ...]) -> dict[str, Any]:
    import torch

    m, n, k = shape
    a, b = (torch.randn(rows, k, device="cuda").half() for rows in (m, n))
    calls: dict[str, Any] = {"cublas": partial(torch.mm, a, b.t())}
    wrong = {}
    for tile in _TILES:
        kernel = loaded(folder / name_of(shape, tile))
        out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
        views = [_view(one) for one in (a, b, out)]
        kernel(*views)
        torch.cuda.synchronize()
        name = str(tile or "default")
        want = a[-4096:].double() @ b.double().t()
        wrong[name] = count_wrong(out[-4096:], want, 2**-10, 1e-3) + int(out.isnan().sum())
        calls[name] = partial(kernel, *views)
    return row_of(shape, calls, wrong, 2 * m * n * k)


if __name__ == "__main__":
    built_products.main("thin", __doc__, _SHAPES, _TILES, _build, _run)
