"""Check attention of sequences of any lengths against float64, and time it beside torch and TVM.

``python -m benchmarks.ragged_attention [--out FILE]`` needs a GPU of ``sm_90a``, torch and nvcc.
Lengths are drawn at random. Peers are torch's flash attention of variable lengths, a call of
``scaled_dot_product_attention`` a sequence, and the kernel of TVM's paged cache.
"""

from __future__ import annotations

import argparse
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.relax.frontend.nn.llm import kv_cache

import tvm_layout_ext as tlx
from benchmarks.attention import exact, on_stream
from benchmarks.gemm_gpu import medians
from benchmarks.memory_bound import provenance
from tvm_layout_ext.tune.space.operator import find_operator

#: Sequences, heads of Q and of K, rows of all sequences, columns of a head.
SHAPES = (
    (1, 32, 32, 1024, 128),
    (1, 32, 8, 4096, 128),
    (8, 32, 8, 8192, 128),
    (32, 16, 16, 8192, 64),
    (64, 32, 8, 4096, 128),
)
ROUNDS = 7


def starts(count: int, rows: int) -> np.ndarray:
    """Where sequences begin whose lengths vary by about their mean."""
    rng = np.random.default_rng(count + rows)
    shares = rng.gamma(2.0, size=count)
    return np.cumsum([0, *rng.multinomial(rows, shares / shares.sum())]).astype("int32")


def built(shape: tuple[int, ...], config: dict[str, int]) -> Any:
    """The kernel of a shape, and of a configuration."""
    b, h, g, t, d = shape
    operator = find_operator("ragged_causal")
    sch = operator.schedule(operator.compute((b, h, g, t, t, d), "float16"), config)
    return tvm.compile(sch.mod, target=tlx.cuda_target("sm_90a"))["main"]


def of_tvm(shape: tuple[int, ...], views: list[Any]) -> Any:
    """The kernel of TVM's paged cache, of the same arguments."""
    import torch

    _, h, g, t, d = shape
    target = tlx.cuda_target("sm_90a")
    func = kv_cache._attention_prefill_ragged(g, h, d, d, "float16", {}, target)
    main = func.with_attr("global_symbol", "main")
    kernel = tvm.compile(tvm.IRModule({"main": main}), target=target)["main"]
    q, k, v, first, keys, out = views
    held = [torch.zeros(n, dtype=torch.int32, device="cuda") for n in (t, shape[0])]
    held.append(torch.zeros(t, h, device="cuda"))
    one, two, sums = map(tvm.runtime.from_dlpack, held)
    given = [q, first, k, v, keys, one, two, out, sums, 1, 0, 1.0, 1e4, d**-0.5]
    return on_stream(kernel, given)


def peers(q: Any, k: Any, v: Any, first: Any) -> dict[str, Any]:
    """Torch's ways."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    ends = first.tolist()
    longest = max(b - a for a, b in pairwise(ends))
    shared = q.shape[1] // k.shape[1]
    wide = [one.repeat_interleave(shared, 1) for one in (k, v)]

    def flash() -> Any:
        return torch.ops.aten._flash_attention_forward(
            q, *wide, first, first, longest, longest, 0.0, True, False, scale=q.shape[-1] ** -0.5
        )

    parts = [
        [one[a:b].transpose(0, 1)[None].contiguous() for one in (q, k, v)]
        for a, b in pairwise(ends)
        if b > a
    ]

    def loop() -> None:
        for one in parts:
            sdpa(*one, is_causal=True, enable_gqa=shared > 1)

    found = {}
    for name, call in (("flash varlen", flash), ("sdpa a sequence", loop)):
        try:
            call()
            torch.cuda.synchronize()
            found[name] = call
        except (RuntimeError, TypeError) as error:
            print(f"  {name}: {str(error).splitlines()[0][:160]}")
    return found


def row(shape: tuple[int, ...]) -> dict[str, Any]:
    """Check and time one shape."""
    import torch

    b, h, g, t, d = shape
    torch.manual_seed(t)
    q, k, v = (torch.randn(t, n, d, device="cuda", dtype=torch.float16) for n in (h, g, g))
    first = torch.from_numpy(starts(b, t)).cuda()
    out, calls = torch.empty_like(q), peers(q, k, v, first)
    errors: dict[str, float] = {}
    views = [tvm.runtime.from_dlpack(one) for one in (q, k, v, first, first, out)]
    for keys, consumers in ((128, 2), (128, 1)):
        calls[f"ours {keys} {consumers}"] = on_stream(
            built(shape, {"keys": keys, "consumers": consumers}), views
        )
    calls["TVM"] = of_tvm(shape, views)
    for name in [one for one in calls if one == "TVM" or one.startswith("ours")]:
        out.fill_(float("nan"))
        calls[name]()
        torch.cuda.synchronize()
        worst = 0.0
        for a, e in pairwise(first.tolist()):
            if e > a:
                one = [x[a:e].transpose(0, 1)[None] for x in (q, k, v)]
                off = (out[a:e, 0].double() - exact(*one, True)).abs().max()
                worst = max(worst, float(off.nan_to_num(float("inf"))))
        errors[name] = worst
        assert name == "TVM" or bool(out.isfinite().all()), name
    times = {name: seconds for name, (seconds, _) in medians(calls, ROUNDS).items()}
    micro = {name: round(seconds * 1e6, 2) for name, seconds in times.items()}
    lengths = np.diff(first.cpu().numpy()).tolist()
    return {"shape": shape, "lengths": lengths, "us": micro, "error": errors}


def main() -> None:
    """Print a table, and write a file."""
    os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    rows = []
    for shape in SHAPES:
        rows.append(row(shape))
        print(shape, rows[-1]["us"], rows[-1]["error"], flush=True)
        if wanted.out:
            wanted.out.write_text(
                json.dumps({**provenance("ragged_attention"), "rows": rows}, indent=1)
            )


if __name__ == "__main__":
    main()
