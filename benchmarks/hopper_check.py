"""Check the GEMM of warpgroups against float64 and time it beside cuBLAS, under a watchdog.

``python -m benchmarks.hopper_check [--cases few] [--out FILE]`` runs cases one after the other in a
process of its own. A kernel that never ends would hold the GPU: the process is ended when a case
takes longer than ``--limit`` seconds, and another one goes on with the next case. Products of few
rows read other weights in every call, so that they come from memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import time
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
#: Tiles and slices to be compared, by size.
_COMPARED: dict[tuple[int, int, int], tuple[tuple[str, int], ...]] = {
    (128, 4096, 4096): (("64x64", 1), ("128x64", 1), ("128x128", 4), ("128x64", 2), ("none", 4)),
    (640, 640, 10240): (("64x64", 1), ("128x128", 4), ("128x224", 8)),
    (200, 5120, 5120): (("64x128", 1), ("128x160", 2), ("128x96", 1)),
    (777, 1304, 4096): (("128x96", 1), ("64x128", 1)),
    (64, 4096, 4096): (("64x64", 1), ("none", 4)),
    (24, 8192, 8192): (("64x64", 1), ("none", 4)),
}


def _case(shape: Any, layout: str = "nt", dtype: str = "float16", **more: Any) -> dict[str, Any]:
    return {"shape": shape, "layout": layout, "dtype": dtype, "more": more}


#: Rows of a product below which weights are read from memory, and bytes of them all.
_FEW, _WEIGHTS = 128, 400_000_000
#: Cycles in which the host queues the launches of a measurement.
_QUEUED = 2_000_000
#: Cases by name.
_CASES = {
    "large": (
        *(_case(shape) for shape in (*_TABLE, *_DRAWN)),
        *(_case(shape, "nn") for shape in (*_TABLE[:5], *_DRAWN[:3])),
        *(_case(shape, "nt", "bfloat16") for shape in _TABLE[1:4]),
    ),
    "compared": tuple(
        _case(shape, wgmma=tile, split_k=slices)
        for shape, chosen in _COMPARED.items()
        for tile, slices in chosen
    ),
    "few": tuple(
        _case((m, n, k))
        for n, k in ((4096, 4096), (11008, 4096), (4096, 14336))
        for m in (1, 4, 16, 64, 128)
    ),
    "types": tuple(
        _case((side, side, side), "nt", dtype)
        for dtype in ("float8_e4m3fn", "int8", "float32")
        for side in (1024, 4096, 8192)
    ),
}


def _built(case: Any) -> Any:
    """The kernel of a case, and its configuration."""
    import tvm_layout_ext as tlx
    from tvm_layout_ext.gpu.hardware import architecture
    from tvm_layout_ext.schedules import gemm, gemm_nt

    operator = (gemm_nt if case["layout"] == "nt" else gemm).OPERATOR
    shape, dtype = tuple(case["shape"]), case["dtype"]
    assert operator.fit is not None
    plain = operator.default_config() | {"group": 8 if min(shape[:2]) > 1024 else 1}
    config = plain | operator.fit(shape, dtype, plain, architecture("sm_90a")) | case["more"]
    target = tlx.cuda_target("sm_90a")
    with target:
        sch = operator.schedule(operator.compute(shape, dtype), config)
    return tlx.build(sch, target=target)["main"], config


def _run(case: Any) -> dict[str, Any]:
    import torch

    kernel, config = _built(case)
    m, n, k = case["shape"]
    of = Case((m, n, k), "", case["dtype"], case["layout"])
    a, b = operands(of)
    right = b.t() if case["layout"] == "nt" else b
    poison = 77 if of.result == "int32" else float("nan")
    c = torch.full((m, n), poison, dtype=getattr(torch, of.result), device="cuda")
    views = [_view(x) for x in (a, b, c)]
    kernel(*views)
    torch.cuda.synchronize()
    found: dict[str, Any] = {"wrong": _wrong(a, right, c, k, of.operand), "config": config}
    first = c.clone()
    others = [b.clone() for _ in range(_WEIGHTS // b.nbytes if m <= _FEW else 0)] or [b]
    weights = [_view(x) for x in others]
    ours = _turns([lambda one=one: kernel(views[0], one, views[2]) for one in weights])
    calls = {"ours": ours, "cublas": _turns([torch_product(of, a, one) for one in others])}
    times = _seconds(calls, 2 * m * n * k)
    for name, seconds in times.items():
        found[name] = round(2 * m * n * k / seconds / 1e12, 1)
        found[f"{name}_us"] = round(seconds * 1e6, 2)
    moved = a.nbytes + b.nbytes + c.nbytes
    found["terabytes"] = round(moved / times["ours"] / 1e12, 2)
    found["host_us"] = round(_host_seconds(calls["ours"]) * 1e6, 1)
    found["ratio"] = round(times["cublas"] / times["ours"], 3)
    kernel(*views)
    found["repeats"] = bool(torch.equal(first, c))
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


def _work(pipe: Any, cases: list[Any]) -> None:
    os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
    for case in cases:
        try:
            pipe.send(_run(case))
        except Exception as error:
            pipe.send({"error": f"{type(error).__name__}: {str(error)[-300:]}"})


def _watched(cases: list[Any], limit: float) -> Any:
    """Results of cases one after the other; a process is ended when one takes too long."""
    context = multiprocessing.get_context("spawn")
    done = 0
    while done < len(cases):
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, cases[done:]), daemon=True)
        process.start()
        theirs.close()
        while done < len(cases):
            try:
                found = ours.recv() if ours.poll(limit) else None
            except EOFError:
                found = {"error": "the process ended"}
            yield cases[done], found or {"error": f"no answer in {limit:.0f} s: ended"}
            done += 1
            if found is None or found.get("error") == "the process ended":
                process.kill()
                break
        process.join(10)


def main() -> None:
    """Run all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", choices=sorted(_CASES), default=sorted(_CASES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=float, default=60.0)
    given = parser.parse_args()
    begun, rows = time.time(), []
    cases = [case for name in given.cases for case in _CASES[name]]
    for case, found in _watched(cases, given.limit):
        rows.append(case | found)
        m, n, k = case["shape"]
        v = found.get("config", {})
        tile = f"{v.get('wgmma')} split {v.get('split_k')} group {v.get('group')}"
        told = found.get("error") or (
            f"wrong {found['wrong']} same {found['repeats']} {found['ours']:6.1f} / "
            f"{found['cublas']:6.1f} = {found['ratio']:.3f}, {found['ours_us']} us, "
            f"{found['terabytes']} TB/s, host {found['host_us']} us"
        )
        where = f"{m}x{n}x{k} {case['layout']} {case['dtype']}"
        print(f"{time.time() - begun:5.0f} s {where:34} {tile:24} {told}", flush=True)
        if given.out:
            given.out.write_text(json.dumps({**provenance("hopper_check"), "rows": rows}))
    sys.exit(any(row.get("error") or row.get("wrong") for row in rows))


if __name__ == "__main__":
    main()
