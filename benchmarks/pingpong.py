"""Time products whose warpgroups take turns, with and without what follows them, beside cuBLAS.

``python -m benchmarks.pingpong [--defaults] [--out FILE]`` builds kernels in parallel and runs them
case after case under the watchdog of :mod:`benchmarks.hopper_check`: the default tile, others that
are modelled to be near, tiles in turns among them, and torch. ``linear`` is a product with a bias,
by ``torch.nn.functional.linear``; ``gelu`` and ``residual`` go on by ``torch.compile``. Each result
is checked against float64. ``--dry-run`` builds everything without a GPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.hopper_check import _seconds, _watched
from benchmarks.memory_bound import provenance

#: Sizes, and what follows: the products of ViT-B/16 of 32 images and of a block of 1024 tokens,
#: short sums, and those that did worst.
CASES: tuple[dict[str, Any], ...] = tuple(
    {"shape": shape, "after": after, "beside": beside}
    for shape, after, *beside in (
        ((6304, 3072, 768), "gelu", "2x128x112/1/1", "128x256/1/1"),
        ((6304, 768, 3072), "residual", "128x192/1/1", "2x128x96/1/1", "128x256/1/1"),
        ((1024, 4096, 1024), "gelu"),
        ((4096, 4096, 1024), "gelu"),
        ((6304, 3072, 768), "plain", "256x128/1/1"),
        ((4096, 4096, 1024), "plain"),
        ((2048, 2048, 2048), "plain"),
        ((2048, 2048, 2048), "gelu"),
        ((4096, 4096, 4096), "plain"),
        ((4096, 4096, 4096), "gelu"),
        ((1111, 2224, 3336), "plain", "2x128x160/1/2", "128x160/1/2", "256x96/1/2"),
        ((5000, 1000, 8000), "plain", "128x176/1/2", "256x176/1/2"),
        ((200, 5120, 5120), "plain", "128x128/1/1", "128x128/2/2"),
        ((12288, 4096, 2048), "plain"),
        ((6304, 2304, 768), "plain", "2x64x256/1/1"),
        ((9216, 3072, 768), "plain"),
        ((300, 16384, 320), "plain"),
        ((300, 16384, 320), "gelu"),
    )
)
#: Tiles in turns, and others, that are timed beside the default.
_IN_TURNS, _OTHERS = 4, 2
#: Those that always are.
_ALWAYS = ("2x128x128/1/1", "2x64x256/1/1")


def program(shape: tuple[int, int, int], after: str) -> Any:
    """A product of halves, and what follows, without a schedule."""
    from tvm import s_tir, tirx

    from tvm_layout_ext import te

    m, n, k = shape
    a, b = te.placeholder((m, k), "float16", name="A"), te.placeholder((n, k), "float16", name="B")
    r = te.reduce_axis((0, k), "r")

    def term(i: Any, j: Any) -> Any:
        return te.sum(a[i, r].astype("float32") * b[j, r].astype("float32"), axis=r)

    product = te.compute((m, n), term, name="product")
    given = [a, b]
    if after != "plain":
        given.append(te.placeholder((n,), "float16", name="bias"))
    if after == "residual":
        given.append(te.placeholder((m, n), "float16", name="rest"))

    def result(i: Any, j: Any) -> Any:
        value = product[i, j]
        if after != "plain":
            value = value + given[2][j].astype("float32")
        if after == "residual":
            value = value + given[3][i, j].astype("float32")
        if after == "gelu":
            half, root = (tirx.const(x, "float32") for x in (0.5, 0.5**0.5))
            value = value * half * (tirx.const(1, "float32") + te.erf(value * root))
        return value.astype("float16")

    out = te.compute((m, n), result, name="C")
    func = te.create_prim_func([*given, out]).with_attr("global_symbol", "main")
    return s_tir.Schedule(func)


def _configs(case: Any, defaults: bool) -> list[str]:
    """Names of tiles, the default's first."""
    from tvm_layout_ext.gpu.hardware import architecture
    from tvm_layout_ext.schedules import _gemm_hopper as hopper

    shape = tuple(case["shape"])
    cost = hopper.work_after(program(shape, case["after"]), "product")
    fitted = hopper.fit(shape, "float16", architecture("sm_90a"), True, False, cost)
    first = "/".join(str(fitted[name]) for name in ("wgmma", "split_k", "cluster"))
    if defaults:
        return [first]
    order = sorted(hopper.TILES, key=lambda tile: hopper.cycles(shape, tile, True, after=cost))
    turns = [tile for tile in order if tile.count("x") > 1]
    others = [tile for tile in order if tile.count("x") == 1 and int(tile.partition("x")[0]) >= 64]
    plain = [f"{tile}/1/1" for tile in (*turns[:_IN_TURNS], *others[:_OTHERS])]
    return list(dict.fromkeys([first, *plain, *_ALWAYS, *case["beside"]]))


def _build(case: Any, folder: str, number: int, config: str) -> str:
    """The library of a kernel."""
    os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
    import tvm_layout_ext as tlx
    from tvm_layout_ext.schedules import gemm, gemm_nt

    tile, slices, cluster = config.split("/")
    chosen = {"wgmma": tile, "split_k": int(slices), "cluster": int(cluster)}
    target = tlx.cuda_target("sm_90a")
    with target:
        sch = program(tuple(case["shape"]), case["after"])
        gemm.multiply(sch, "product", gemm_nt.OPERATOR.default_config() | chosen)
    path = f"{folder}/{number}_{config.replace('/', '_')}.so"
    tlx.build(sch, target=target).export_library(path)
    return path


def peers(case: Any, given: list[Any]) -> dict[str, Callable[[], Any]]:
    """What torch calls for a case, by name."""
    import torch
    from torch.nn import functional

    a, b, *more = given
    if case["after"] == "plain":
        return {"torch": lambda: functional.linear(a, b)}
    if case["after"] == "gelu":

        def follow(a: Any, b: Any, bias: Any) -> Any:
            return functional.gelu(functional.linear(a, b, bias))
    else:

        def follow(a: Any, b: Any, bias: Any, rest: Any) -> Any:
            return functional.linear(a, b, bias) + rest

    calls: dict[str, Callable[[], Any]] = {"torch": lambda: functional.linear(a, b, more[0])}
    compiled = torch.compile(follow, dynamic=False)
    try:
        compiled(*given)
    except Exception as error:  # Kernels are worth timing without this peer.
        print(f"torch.compile fails: {type(error).__name__}: {str(error)[-300:]}", file=sys.stderr)
    else:
        calls["compiled"] = lambda: compiled(*given)
    return calls


def _wrong(case: Any, given: list[Any], c: Any) -> int:
    """Elements that differ from float64 by more than sums in float32 and a rounding do."""
    import torch

    a, b, *more = (one.double() for one in given)
    want = a @ b.T
    if more:
        want += sum(more[1:], more[0])
    if case["after"] == "gelu":
        want = torch.nn.functional.gelu(want)
    bound = 2 * torch.finfo(c.dtype).eps * want.abs() + 2.0**-20 * a.shape[1]
    return int((~((c.double() - want).abs() <= bound)).sum())


def run(case: Any, built: Any) -> list[dict[str, Any]]:
    """Check and time the kernels of a case."""
    # The watchdog's process may have no children.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch
    import tvm

    m, n, k = case["shape"]
    sizes = [(m, k), (n, k), *([(n,)] if case["after"] != "plain" else [])]
    sizes += [(m, n)] if case["after"] == "residual" else []
    given = [torch.randn(size, device="cuda").half() for size in sizes]
    calls, rows = dict(peers(case, given)), []
    views = [tvm.runtime.from_dlpack(one) for one in given]
    others = list(calls)
    for config, path in built:
        kernel = tvm.runtime.load_module(path)["main"]
        c = torch.full((m, n), float("nan"), dtype=torch.float16, device="cuda")
        out = tvm.runtime.from_dlpack(c)
        kernel(*views, out)
        torch.cuda.synchronize()
        first = c.clone()
        kernel(*views, out)
        row = {"config": config, "wrong": _wrong(case, given, c)}
        rows.append(row | {"repeats": bool(torch.equal(first, c))})
        calls[config] = lambda f=kernel, out=out: f(*views, out)
    times = _seconds(calls, 2 * m * n * k)
    for row in rows:
        row["us"] = round(times[row["config"]] * 1e6, 2)
        row["teraflops"] = round(2 * m * n * k / times[row["config"]] / 1e12, 1)
        row |= {f"{who}_us": round(times[who] * 1e6, 2) for who in others}
    return rows


def told(row: Any) -> str:
    """A line of the table."""
    if "error" in row:
        return str(row["error"])
    peer = ", ".join(f"{who} {row[who]}" for who in ("torch_us", "compiled_us") if who in row)
    marks = f"wrong {row['wrong']} same {row['repeats']}"
    return f"{row['config']:16} {row['us']:8} us {row['teraflops']:6} TFLOPS, {peer}, {marks}"


def build_all(pool: Any, folder: str, defaults: bool) -> list[Any]:
    """Names and libraries of each case's kernels, as they will be."""
    every = []
    for number, case in enumerate(CASES):
        names = _configs(case, defaults)
        every.append([(one, pool.submit(_build, case, folder, number, one)) for one in names])
    return every


class Built:
    """The libraries of a case, or why one is none."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def exception(self) -> Any:
        """The first error of a build, or None."""
        return next((one.exception() for _, one in self._found if one.exception()), None)

    def result(self) -> list[tuple[str, str]]:
        """Names and paths."""
        return [(name, one.result()) for name, one in self._found]


def main() -> None:
    """Run all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--defaults", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    rows: list[Any] = []
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(given.jobs, mp_context=context) as pool,
    ):
        built = [Built(found) for found in build_all(pool, folder, given.defaults)]
        if given.dry_run:
            for case, one in zip(CASES, built, strict=True):
                print(case, one.exception() or [name for name, _ in one.result()], flush=True)
            return
        for case, found in _watched(CASES, built, given.limit, run):
            print(case["after"], "x".join(map(str, case["shape"])), flush=True)
            for place, row in enumerate(found):
                rows.append(case | row | {"default": place == 0})
                print(f"    {told(row)}", flush=True)
            if given.out:
                given.out.write_text(json.dumps({**provenance("pingpong"), "rows": rows}))


if __name__ == "__main__":
    main()
