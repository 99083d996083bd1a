"""Check attention against float64 and time it beside torch's and Triton's kernels.

``python -m benchmarks.attention [--out FILE]`` needs a GPU of ``sm_90a``, torch, Triton and nvcc.
Each row is held against float64 of the first head of the batch and the last one first.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir

import tvm_layout_ext as tlx
from benchmarks.gemm_gpu import medians
from benchmarks.memory_bound import provenance
from tvm_layout_ext.errors import LayoutExtError
from tvm_layout_ext.tune.space.operator import find_operator

#: Batch, heads of Q and of K, queries, keys, columns of a head.
SHAPES = (
    (8, 32, 32, 4096, 4096, 128),
    (4, 16, 16, 2048, 2048, 64),
    (1, 16, 16, 1024, 1024, 64),
    (1, 32, 8, 2048, 2048, 128),
    (2, 16, 16, 4096, 4096, 256),
    (2, 16, 16, 4096, 4096, 96),
    (2, 16, 16, 4096, 4096, 192),
    (32, 12, 12, 197, 197, 64),
    (8, 12, 12, 384, 384, 64),
    (8, 16, 16, 257, 257, 64),
    (2, 8, 8, 4096, 4096, 40),
    (2, 8, 8, 4096, 77, 40),
    (512, 3, 3, 49, 49, 32),
    (2, 16, 16, 256, 256, 72),
    (1, 32, 8, 1, 2048, 128),
    (16, 32, 8, 1, 2048, 128),
    (1, 32, 32, 4, 4, 128),
    (2, 16, 16, 2048, 2048, 128),
    (16, 16, 16, 512, 512, 128),
    (4, 12, 12, 1024, 1024, 64),
    (16, 12, 12, 1024, 1024, 64),
    (32, 12, 12, 512, 512, 64),
    (64, 12, 12, 197, 197, 64),
    (1, 24, 24, 4608, 4608, 128),
)
BACKENDS = ("CUDNN_ATTENTION", "FLASH_ATTENTION")
#: Which of them takes numbers to add to scores, and one that does.
BIASED_BACKENDS = ("CUDNN_ATTENTION", "EFFICIENT_ATTENTION")
ROUNDS = 9


def built(
    shape: tuple[int, ...], causal: bool, dtype: str, biased: bool = False, **wished: int
) -> Any:
    """The kernel of a shape."""
    form = "_causal" if causal else "_biased" if biased else ""
    operator = find_operator(f"attention{form}")
    sch = s_tir.Schedule(operator.unscheduled(shape, dtype)["main"])
    target = tlx.cuda_target("sm_90a")
    with target:
        sch.fuse_attention("mean", **wished)
    return tvm.compile(sch.mod, target=target)["main"]


def on_stream(kernel: Any, views: list[Any]) -> Any:
    """A launch on torch's current stream, which a graph may capture."""

    def run() -> None:
        with tvm_ffi.use_torch_stream():
            kernel(*views)

    return run


def exact(q: Any, k: Any, v: Any, causal: bool, bias: Any = None, at: int = 0) -> Any:
    """The result of a head in float64: the first (0) or the last (-1) one of the batch."""
    import torch

    q, k, v = (one[at, at].double() for one in (q, k, v))
    scores = q @ k.t() * q.shape[-1] ** -0.5
    scores = scores if bias is None else scores + bias[at, at]
    if causal:
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1 + len(k) - len(q))
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores.softmax(-1) @ v


def peers(q: Any, k: Any, v: Any, causal: bool, bias: Any = None) -> dict[str, Any]:
    """Torch's kernels of attention."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    def call(name: str) -> Any:
        def run() -> Any:
            with sdpa_kernel(getattr(SDPBackend, name)):
                shared = q.shape[1] != k.shape[1]
                return sdpa(q, k, v, bias, is_causal=causal, enable_gqa=shared)

        return run

    found = {}
    for name in BACKENDS if bias is None else BIASED_BACKENDS:
        try:
            call(name)()
        except RuntimeError:
            continue  # A dash in the table.
        found[name.partition("_")[0].lower()] = call(name)
    return found


def worst(out: Any, q: Any, k: Any, v: Any, causal: bool, bias: Any = None) -> float:
    """How far the first and the last head are off; infinite where there is no number."""
    off = [(out[i, i].double() - exact(q, k, v, causal, bias, i)).abs().max() for i in (0, -1)]
    return max(float(one.nan_to_num(float("inf"))) for one in off)


def row(
    shape: tuple[int, ...],
    causal: bool,
    dtype: str,
    variants: list[dict[str, int]],
    biased: bool = False,
) -> dict[str, Any]:
    """Check and time one shape."""
    import torch
    from triton.runtime.errors import OutOfResources

    from benchmarks import triton_products

    b, h, g, m, n, d = shape
    torch.manual_seed(m)
    q, k, v = (
        torch.randn(s, device="cuda", dtype=getattr(torch, dtype))
        for s in ((b, h, m, d), (b, g, n, d), (b, g, n, d))
    )
    bias = torch.randn((b, h, m, n), device="cuda", dtype=q.dtype) if biased else None
    calls, errors = dict(peers(q, k, v, causal, bias)), {}
    for wished in variants:
        name = "ours" + "".join(f" {key}={value}" for key, value in wished.items())
        try:
            kernel = built(shape, causal, dtype, biased, **wished)
        except LayoutExtError as error:
            errors[name] = str(error)
            continue
        out = torch.full_like(q, float("nan"))
        given = (q, k, v, *([bias] if biased else []), out)
        views = [tvm.runtime.from_dlpack(one) for one in given]
        kernel(*views)
        torch.cuda.synchronize()
        errors[name] = worst(out, q, k, v, causal, bias)
        assert bool(out.isfinite().all()), name
        calls[name] = on_stream(kernel, views)
    held = torch.full_like(q, float("nan"))
    try:
        if not biased:
            calls["triton"] = triton_products.attention(q, k, v, held, causal=causal)
            calls["triton"]()  # Which measures its tiles.
            errors["triton"] = worst(held, q, k, v, causal)
    except OutOfResources:
        del calls["triton"]  # A dash in the table.
    work = find_operator("attention_causal" if causal else "attention").flops(shape)
    times = {name: seconds for name, (seconds, _) in medians(calls, ROUNDS).items()}
    tflops = {name: round(work / seconds / 1e12, 1) for name, seconds in times.items()}
    micro = {name: round(seconds * 1e6, 2) for name, seconds in times.items()}
    return {
        "shape": shape,
        "causal": causal,
        "biased": biased,
        "dtype": dtype,
        "us": micro,
        "tflops": tflops,
        "error": errors,
    }


def main() -> None:
    """Print a table, and write a file."""
    os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", type=int, nargs="*", default=range(len(SHAPES)))
    parser.add_argument("--biased", action="store_true", help="add numbers to all scores")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--variants", default="[{}]", help="JSON: wishes of fuse_attention")
    options = parser.parse_args()
    rows = []
    for number in options.only:
        # Torch counts rows of a causal mask from the first key, we from the last one.
        square = SHAPES[number][3] == SHAPES[number][4] and not options.biased
        for causal in (False, True)[: 1 + square]:
            variants = json.loads(options.variants)
            rows.append(row(SHAPES[number], causal, options.dtype, variants, options.biased))
            print(json.dumps(rows[-1]), flush=True)
            if options.out:
                options.out.write_text(json.dumps({**provenance("attention"), "rows": rows}))


if __name__ == "__main__":
    main()
