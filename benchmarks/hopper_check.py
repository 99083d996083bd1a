"""Check the GEMM of warpgroups against float64 and time it beside cuBLAS, under a watchdog.

``python -m benchmarks.hopper_check [--out FILE]`` runs all cases one after the other in a process
of its own. A kernel that never ends would hold the GPU: the process is ended when a case takes
longer than ``--limit`` seconds, and another one goes on with the next case.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

_BASE = {"tile_m": 128, "tile_n": 256, "tile_k": 64, "stages": 4, "group": 8, "persistent": 1}


def _case(shape: tuple[int, int, int], layout: str = "nt", dtype: str = "float16", **more: int) -> Any:
    return {"shape": shape, "layout": layout, "dtype": dtype, "config": _BASE | more}


_ALL = (
    _case((256, 512, 256)),
    _case((256, 512, 256), "nn"),
    _case((256, 512, 256), "nn", "bfloat16"),
    _case((256, 512, 256), persistent=0),
    _case((200, 248, 72), "nn"),
    _case((200, 248, 72), "nt", tile_n=128),
    _case((1000, 3000, 2000), "nt"),
    _case((1000, 3000, 2000), "nn", tile_n=128, stages=6),
    _case((1000, 3003, 2000), "nt"),
    _case((512, 512, 64), tile_m=64, tile_n=128, stages=6),
    _case((512, 512, 448), "nn", tile_m=256, tile_n=128),
    _case((576, 512, 448), "nn", tile_m=192, tile_n=128),
    _case((2048, 2048, 2048)),
    _case((2048, 2048, 2048), "nn"),
    _case((4096, 4096, 4096)),
    _case((4096, 4096, 4096), persistent=0),
    _case((4096, 4096, 4096), "nn"),
    _case((4096, 4096, 4096), "nt", "bfloat16"),
    _case((4096, 4096, 4096), tile_n=192, stages=4),
    _case((4096, 4096, 4096), tile_n=128, stages=6),
    _case((4096, 4096, 4096), tile_m=256, tile_n=128),
    _case((8192, 8192, 8192)),
    _case((8192, 8192, 8192), group=16),
    _case((8192, 8192, 8192), "nn"),
    _case((1000, 3000, 2000), tile_n=128, stages=6),
    _case((3072, 5120, 6144)),
    _case((4000, 4104, 4056), "nn"),
)


def _built(case: Any) -> Any:
    import tvm
    from tvm import s_tir

    import tvm_layout_ext as tlx
    from tvm_layout_ext import te
    from tvm_layout_ext.schedules import _gemm_hopper
    from tvm_layout_ext.schedules._gemm_types import compute

    tensors = compute(case["shape"], case["dtype"], case["layout"] == "nt")
    target = tlx.cuda_target("sm_90a")
    with target:
        sch = s_tir.Schedule(te.create_prim_func(tensors).with_attr("global_symbol", "main"))
        _gemm_hopper.multiply(sch, "product", case["config"])
    return tlx.build(sch, target=target)["main"], tvm


def _run(case: Any) -> dict[str, Any]:
    import torch

    kernel, tvm = _built(case)
    m, n, k = case["shape"]
    kind = getattr(torch, case["dtype"])
    a = torch.randn((m, k), device="cuda").to(kind)
    b = torch.randn((n, k) if case["layout"] == "nt" else (k, n), device="cuda").to(kind)
    right = b.t() if case["layout"] == "nt" else b
    c = torch.full((m, n), float("nan"), dtype=kind, device="cuda")
    views = [tvm.runtime.from_dlpack(x) for x in (a, b, c)]
    kernel(*views)
    torch.cuda.synchronize()
    found: dict[str, Any] = {"wrong": _wrong(a, right, c, k)}
    first = c.clone()
    out = torch.empty_like(c)
    calls = {"ours": lambda: kernel(*views), "cublas": lambda: torch.matmul(a, right, out=out)}
    for name, seconds in _seconds(calls, 2 * m * n * k).items():
        found[name] = round(2 * m * n * k / seconds / 1e12, 1)
    found["ratio"] = round(found["ours"] / found["cublas"], 3)
    found["repeats"] = bool(torch.equal(first, c))
    return found


def _wrong(a: Any, right: Any, c: Any, k: int) -> int:
    """Elements that differ from float64 by more than sums in float32 and a rounding do."""
    import torch

    want = a.double() @ right.double()
    bound = 2 * torch.finfo(c.dtype).eps * want.abs() + 2.0**-20 * k
    return int((~((c.double() - want).abs() <= bound)).sum())


def _seconds(calls: Any, flops: int) -> dict[str, float]:
    import torch

    number = max(2, min(50, int(2e-3 / (flops / 6e14))))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(12):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
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
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=float, default=60.0)
    given = parser.parse_args()
    begun, rows = time.time(), []
    for case, found in _watched(list(_ALL), given.limit):
        rows.append(case | found)
        m, n, k = case["shape"]
        v = case["config"]
        tile = f"{v['tile_m']}x{v['tile_n']}, {v['stages']} st, g{v['group']}, p{v['persistent']}"
        told = found.get("error") or (
            f"wrong {found['wrong']} same {found['repeats']} {found['ours']:6.1f} / "
            f"{found['cublas']:6.1f} = {found['ratio']:.3f}"
        )
        where = f"{m}x{n}x{k} {case['layout']} {case['dtype']}"
        print(f"{time.time() - begun:5.0f} s {where:34} {tile:24} {told}", flush=True)
        if given.out:
            given.out.write_text(json.dumps(rows))
    sys.exit(any(row.get("error") or row.get("wrong") for row in rows))


if __name__ == "__main__":
    main()
