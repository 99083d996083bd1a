"""Check the GEMM of warpgroups against float64 and time it beside cuBLAS, under a watchdog.

``python -m benchmarks.hopper_check [--cases drawn] [--out FILE]`` builds kernels in parallel, and
runs them case after case in a process of its own: the default configuration, beside it other
tiles, clusters and slices, cuBLAS and Triton, in turns. A kernel that never ends would hold the
GPU: the process is ended when a case takes longer than ``--limit`` seconds, and another one goes on
with the next. Products of few rows read other weights in every call, so that they come from memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gemm_gpu import operands, torch_product
from benchmarks.gemm_kernels import Case
from benchmarks.memory_bound import provenance

#: Sizes of the project's tables, and others drawn once: sides of 256 to 16384, ragged ones too.
_TABLE = (
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (4096, 11008, 4096),
    (4096, 4096, 11008),
    (8192, 1024, 8192),
    (2048, 2048, 16384),
    (128, 4096, 4096),
)
_DRAWN = (
    (1000, 3000, 2000),
    (4000, 4104, 4056),
    (3072, 5120, 6144),
    (6144, 2048, 12288),
    (200, 5120, 5120),
    (256, 8192, 1024),
    (16384, 512, 1024),
    (777, 1304, 4096),
    (300, 16384, 320),
    (2500, 2504, 2504),
    (5000, 1000, 8000),
    (1536, 1536, 1536),
    (3584, 14336, 1024),
    (9216, 3072, 768),
    (640, 640, 10240),
    (12288, 4096, 2048),
    (7168, 7168, 7168),
    (4352, 2304, 5504),
    (1920, 8064, 3264),
    (1111, 2224, 3336),
)


def _case(
    shape: Any,
    layout: str = "nt",
    dtype: str = "float16",
    beside: int = 0,
    tiles: tuple[str, ...] = (),
) -> dict[str, Any]:
    return {"shape": shape, "layout": layout, "dtype": dtype, "beside": beside, "tiles": tiles}


#: Rows of a product below which weights are read from memory, and bytes of them all.
_FEW, _WEIGHTS = 128, 400_000_000
#: Tiles are compared that are modelled to take so many times as long as the best one at most.
_WORTH = 1.1
#: Sums of a product whose tiles are more than multiprocessors; begins of the names of tiles of few
#: rows.
_MANY, _SWAPPED = 5_000_000, ("8x", "16x", "24x", "32x", "48x")
#: Operands of Triton's product.
_TRITON = ("float16", "bfloat16")
#: Cycles in which the host queues the launches of a measurement.
_QUEUED = 2_000_000
#: Cases by name. Those that are fitted have so many other tiles beside the default, or those named.
_CASES = {
    "large": (
        *(_case(shape) for shape in (*_TABLE, *_DRAWN)),
        *(_case(shape, "nn") for shape in (*_TABLE[:5], *_DRAWN[:3])),
        *(_case(shape, "nt", "bfloat16") for shape in _TABLE[1:4]),
    ),
    "suite": (*(_case(shape) for shape in _TABLE), _case(_TABLE[2], "nn")),
    "table": tuple(_case(shape, beside=3) for shape in _TABLE),
    "drawn": tuple(_case(shape, beside=3) for shape in _DRAWN),
    "few": tuple(
        _case((m, n, k))
        for n, k in ((4096, 4096), (11008, 4096), (4096, 14336))
        for m in (1, 4, 16, 64, 128)
    ),
    "wide": tuple(
        _case(shape, tiles=("256x144", "256x160", "256x176"))
        for shape in (_TABLE[3], _TABLE[4], *(_DRAWN[i] for i in (0, 1, 8, 10, 17, 19)))
    ),
    "types": tuple(
        _case((side, side, side), "nt", dtype)
        for dtype in ("float8_e4m3fn", "int8", "float32")
        for side in (1024, 4096, 8192)
    ),
}


def _configs(case: Any) -> list[dict[str, Any]]:
    """The default configuration of a case, then others: tiles, clusters, slices."""
    from tvm_layout_ext.gpu.hardware import architecture
    from tvm_layout_ext.schedules import _gemm_hopper, gemm, gemm_nt
    from tvm_layout_ext.tune.space.space import Space

    operator = (gemm_nt if case["layout"] == "nt" else gemm).OPERATOR
    shape, size = tuple(case["shape"]), 1 if case["dtype"][-1] == "8" else 2
    default = Space(operator, shape, case["dtype"], architecture("sm_90a")).default()

    def cycles(choice: tuple[str, int, int]) -> float:
        tile, slices, cluster = choice
        return _gemm_hopper.cycles(shape, tile, case["layout"] == "nt", slices, size, cluster)

    tiles = [
        one for one in _gemm_hopper.TILES if 2 * int(one.partition("x")[0]) >= min(128, shape[0])
    ]
    found: list[tuple[str, int, int]] = []
    kinds = ((1, 1), (1, 2), (2, 2), (4, 4), (2, 1), (4, 1)) if case["beside"] else ()
    for slices, cluster in kinds:
        if (slices > 1 and shape[0] * shape[1] > _MANY) or (cluster > slices and shape[0] <= 64):
            continue
        best = sorted(((tile, slices, cluster) for tile in tiles), key=cycles)
        best = [one for one in best if cluster <= slices or not one[0].startswith(_SWAPPED)]
        if slices == 1 or cycles(best[0]) < _WORTH * cycles(found[0]):
            found += best[: case["beside"] if slices <= cluster else 1]
    more = [dict(zip(("wgmma", "split_k", "cluster"), one, strict=True)) for one in found]
    more += [
        {"wgmma": tile, "split_k": 1, "cluster": cluster}
        for tile in case["tiles"]
        for cluster in (1, 2)
    ]
    if case["beside"] and shape[0] * shape[1] > _MANY:
        more += [{"group": 4}, {"group": 16}]
    return [default, *(one for one in (default | other for other in more) if one != default)]


def _build(case: Any, folder: str, number: int) -> list[tuple[dict[str, Any], str]]:
    """Libraries of a case's kernels."""
    os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
    import tvm_layout_ext as tlx
    from tvm_layout_ext.schedules import gemm, gemm_nt

    operator = (gemm_nt if case["layout"] == "nt" else gemm).OPERATOR
    target = tlx.cuda_target("sm_90a")
    found = []
    for place, config in enumerate(_configs(case)):
        with target:
            tensors = operator.compute(tuple(case["shape"]), case["dtype"])
            sch = operator.schedule(tensors, config)
        path = f"{folder}/{number}_{place}.so"
        tlx.build(sch, target=target).export_library(path)
        found.append((config, path))
    return found


def _run(case: Any, built: Any) -> list[dict[str, Any]]:
    import torch
    import tvm

    m, n, k = case["shape"]
    of = Case((m, n, k), "", case["dtype"], case["layout"])
    a, b = operands(of)
    right = b.t() if case["layout"] == "nt" else b
    others = [b.clone() for _ in range(_WEIGHTS // b.nbytes if m <= _FEW else 0)] or [b]
    weights = [_view(x) for x in others]
    calls = {"cublas": _turns([torch_product(of, a, one) for one in others])}
    if of.operand in _TRITON:
        calls["triton"] = _turns(_triton(of, a, right, others))
    found = []
    for name, (config, path) in enumerate(built):
        kernel = tvm.runtime.load_module(path)["main"]
        poison = 77 if of.result == "int32" else float("nan")
        c = torch.full((m, n), poison, dtype=getattr(torch, of.result), device="cuda")
        left, out = _view(a), _view(c)
        kernel(left, _view(b), out)
        torch.cuda.synchronize()
        first = c.clone()
        kernel(left, _view(b), out)
        row = {"wrong": _wrong(a, right, c, k, of.operand), "config": config}
        found.append(row | {"repeats": bool(torch.equal(first, c))})
        calls[str(name)] = _turns(
            [lambda one=one, f=kernel, x=left, y=out: f(x, one, y) for one in weights]
        )
    times = _seconds(calls, 2 * m * n * k)
    moved = a.nbytes + b.nbytes + m * n * torch.finfo(torch.float16).bits // 8
    for name, row in enumerate(found):
        peers = {who: times[who] for who in ("cublas", "triton") if who in times}
        for who, seconds in {"ours": times[str(name)], **peers}.items():
            row[who] = round(2 * m * n * k / seconds / 1e12, 1)
            row[f"{who}_us"] = round(seconds * 1e6, 2)
        row["terabytes"] = round(moved / times[str(name)] / 1e12, 2)
        row["ratio"] = round(times["cublas"] / times[str(name)], 3)
        row["host_us"] = round(_host_seconds(calls[str(name)]) * 1e6, 1)
    return found


def _triton(of: Case, a: Any, right: Any, others: list[Any]) -> list[Any]:
    """Triton's product by each copy of the right operand, after a check of the first."""
    import torch

    from benchmarks import triton_products

    m, n, k = of.shape
    c = torch.full((m, n), float("nan"), dtype=getattr(torch, of.result), device="cuda")
    found = [triton_products.product(a, b, c, of.layout) for b in others]
    found[0]()  # Which measures its tiles.
    if wrong := _wrong(a, right, c, k, of.operand):
        raise ArithmeticError(f"{wrong} elements of Triton's product are wrong")
    return found


def _turns(calls: Any) -> Any:
    """Call one after the other, a turn each time."""
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def _view(x: Any) -> Any:
    """A tensor of torch as TVM's; DLPack has no 8-bit floats."""
    import torch
    import tvm

    name = str(x.dtype).removeprefix("torch.")
    if not name.startswith("float8"):
        return tvm.runtime.from_dlpack(x)
    return tvm.runtime.from_dlpack(x.view(torch.uint8))._create_view(tuple(x.shape), name)


def _wrong(a: Any, right: Any, c: Any, k: int, dtype: str) -> int:
    """Elements that differ from float64 by more than sums in float32 and a rounding do.

    Tensor cores cut products of fp8 off 13 bits after the point of the largest, and the sum with
    them, once for 32 terms; sums of tf32 twice as often as those of f16.
    """
    import torch

    want = a.float().double() @ right.float().double()
    exact = c.dtype == torch.int32
    relative = 0.0 if exact else 2 * torch.finfo(c.dtype).eps
    if dtype.startswith("float8"):
        relative += k / 32 * 2.0**-13
    step = 2.0**-12 if dtype.startswith("float8") else 2.0**-19 if dtype == "float32" else 2.0**-20
    bound = relative * want.abs() + (0 if exact else step * k)
    return int((~((c.double() - want).abs() <= bound)).sum())


def _host_seconds(call: Any) -> float:
    """Seconds that the host takes for a call, which it does not wait for."""
    import torch

    begun = time.perf_counter()
    for _ in range(20):
        call()
    seconds = (time.perf_counter() - begun) / 20
    torch.cuda.synchronize()
    return seconds


def _seconds(calls: Any, flops: int) -> dict[str, float]:
    import torch

    number = max(2, min(50, int(2e-3 / (flops / 6e14))))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(12):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            # Launches are queued meanwhile, so that the host is not what is timed.
            torch.cuda._sleep(_QUEUED)
            begin.record()
            for _ in range(number):
                call()
            end.record()
            end.synchronize()
            if turn >= 2:
                seconds[name].append(begin.elapsed_time(end) / 1e3 / number)
    return {name: statistics.median(all_) for name, all_ in seconds.items()}


def _work(pipe: Any, run: Any) -> None:
    while (task := pipe.recv()) is not None:
        case, built = task
        try:
            pipe.send(run(case, built))
        except Exception as error:
            pipe.send([{"error": f"{type(error).__name__}: {str(error)[-300:]}"}])


def _watched(cases: Any, built: list[Any], limit: float, run: Any = _run) -> Any:
    """Results of ``run`` of cases one after the other; its process ends if one takes too long."""
    context = multiprocessing.get_context("spawn")
    process = None
    for case, kernels in zip(cases, built, strict=True):
        if process is None:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, run), daemon=True)
            process.start()
            theirs.close()
        if failed := kernels.exception():
            yield case, [{"error": f"{type(failed).__name__}: {str(failed)[-300:]}"}]
            continue
        try:
            ours.send((case, kernels.result()))
            found = ours.recv() if ours.poll(limit) else None
        except EOFError:
            found = [{"error": "the process ended"}]
        yield case, found or [{"error": f"no answer in {limit:.0f} s: ended"}]
        if found is None or found[0].get("error") == "the process ended":
            process.kill()
            process = None
    if process is not None:
        ours.send(None)
        process.join(10)


def _told(row: Any) -> str:
    """A line of the table."""
    v = row.get("config", {})
    tile = " ".join(str(v.get(name)) for name in ("wgmma", "split_k", "cluster", "group"))
    return f"{tile:18}" + (
        row.get("error")
        or f"wrong {row['wrong']} same {row['repeats']} {row['ours']:6.1f} / "
        f"{row['cublas']:6.1f} = {row['ratio']:.3f}, Triton {row.get('triton', '-')}, "
        f"{row['ours_us']} us, "
        f"{row['terabytes']} TB/s, host {row['host_us']} us"
    )


def _mean(rows: list[Any]) -> str:
    """Geometric mean and least of the defaults' ratios to cuBLAS."""
    ratios = [row["ratio"] for row in rows if row.get("default") and "ratio" in row]
    if not ratios:
        return "no default was measured"
    mean = statistics.geometric_mean(ratios)
    return f"{len(ratios)} defaults: {mean:.3f} of cuBLAS, {min(ratios):.3f} at least"


def main() -> None:
    """Run all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", choices=sorted(_CASES), default=sorted(_CASES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    begun, rows = time.time(), []
    cases = [case for name in given.cases for case in _CASES[name]]
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(given.jobs, mp_context=context) as pool,
    ):
        built = [pool.submit(_build, case, folder, i) for i, case in enumerate(cases)]
        for case, found in _watched(cases, built, given.limit):
            print(f"{time.time() - begun:5.0f} s {'x'.join(map(str, case['shape']))}", end=" ")
            print(case["layout"], case["dtype"], flush=True)
            for place, row in enumerate(found):
                rows.append(case | row | {"default": place == 0})
                print(f"      {_told(row)}", flush=True)
            if given.out:
                given.out.write_text(json.dumps({**provenance("hopper_check"), "rows": rows}))
    print(_mean(rows))
    sys.exit(any(row.get("error") or row.get("wrong") for row in rows))


if __name__ == "__main__":
    main()
