"""Check depthwise convolutions and pools against torch, and time them beside cuDNN.

``python -m benchmarks.depthwise [--out FILE]`` needs a CUDA GPU and torch. Images lie channels
last, in float16; shapes are ConvNeXt's, EfficientNet's and MobileNet's, batch 16 and 1. cuDNN takes
the fastest of its algorithms. Results are held against torch in float64.
"""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path
from typing import Annotated, Any

import tvm
import typer

import tvm_layout_ext as tlx
from benchmarks.attention import on_stream
from benchmarks.gemm_gpu import medians
from benchmarks.memory_bound import provenance
from tvm_layout_ext import te
from tvm_layout_ext.models.by_blocks import by_blocks
from tvm_layout_ext.models.convolutions.by_windows import by_windows
from tvm_layout_ext.schedules import depthwise_conv2d
from tvm_layout_ext.text import columns

#: Batch, side of an image, channels, side of the window, stride.
CASES = (
    (16, 56, 96, 7, 1),
    (16, 28, 192, 7, 1),
    (16, 14, 384, 7, 1),
    (16, 7, 768, 7, 1),
    (16, 112, 32, 3, 1),
    (16, 112, 96, 3, 2),
    (16, 56, 144, 3, 1),
    (16, 56, 144, 5, 2),
    (16, 28, 240, 5, 1),
    (16, 28, 240, 3, 2),
    (16, 14, 480, 3, 1),
    (16, 14, 672, 5, 1),
    (16, 14, 672, 5, 2),
    (16, 7, 1152, 5, 1),
    (16, 7, 1152, 3, 1),
    (64, 56, 96, 7, 1),
    (64, 56, 144, 3, 1),
    (1, 56, 96, 7, 1),
    (1, 14, 672, 5, 1),
    (16, 17, 672, 5, 1),
    (16, 113, 32, 3, 1),
    (16, 75, 96, 7, 2),
)
ROUNDS = 15
#: What is rounded to float16, and sums of float32.
TOLERANCE = 1e-3
Case = tuple[int, int, int, int, int]


def kernel(case: Case, blocks: bool) -> Any:
    """A built convolution by windows, or as a sum by ``auto_coalesce``."""
    batch, side, channels, window, stride = case
    shape = (batch, side, side, channels, window, window)
    func = te.create_prim_func(depthwise_conv2d.compute(shape, "float16", stride))
    target = tlx.default_target()
    with target:
        made = (by_blocks if blocks else by_windows)(func, target)
    assert made is not None
    named = made.function.with_attr("global_symbol", "main")
    return tvm.compile(tvm.IRModule({"main": named}), target=target)["main"]


def row(case: Case) -> dict[str, Any]:
    """Check and time one case."""
    import torch

    batch, side, channels, window, stride = case
    half = {"device": "cuda", "dtype": torch.float16}
    image = torch.randn((batch, side, side, channels), **half)
    weight = torch.randn((window, window, channels), **half)
    views = image.permute(0, 3, 1, 2), weight.permute(2, 0, 1)[:, None]
    attrs = {"stride": stride, "padding": window // 2, "groups": channels}
    conv = torch.nn.functional.conv2d
    last = views[1].contiguous(memory_format=torch.channels_last)
    calls = {"cudnn": lambda: conv(views[0], last, **attrs)}
    want = conv(*(one.double() for one in views), **attrs).permute(0, 2, 3, 1)
    errors = {}
    for name in ("windows", "blocks"):
        out = torch.full(want.shape, float("nan"), **half)
        made = kernel(case, name == "blocks")
        given = [tvm.runtime.from_dlpack(one) for one in (image, weight, out)]
        made(*given)
        torch.cuda.synchronize()
        error = ((out.double() - want).abs().max() / want.abs().max()).nan_to_num(float("inf"))
        errors[name] = float(error)
        calls[name] = on_stream(made, given)
    with torch.backends.cudnn.flags(benchmark=True):
        seconds = {name: one for name, (one, _) in medians(calls, ROUNDS).items()}
    micro = {name: round(one * 1e6, 2) for name, one in seconds.items()}
    return {"case": case, "us": micro, "error": errors}


def told(rows: list[dict[str, Any]]) -> str:
    """Table, and the mean share of cuDNN's time."""
    shares = [one["us"]["windows"] / one["us"]["cudnn"] for one in rows]
    lines = [
        [
            "x".join(map(str, one["case"])),
            *(f"{one['us'][name]:.1f}" for name in ("windows", "blocks", "cudnn")),
            f"{share:.2f}",
            f"{max(one['error'].values()):.1e}",
        ]
        for one, share in zip(rows, shares, strict=True)
    ]
    mean = exp(sum(map(log, shares)) / len(shares))
    heads = ["batch, side, channels, window, stride", "windows us", "blocks us", "cuDNN us"]
    text = columns([*heads, "of cuDNN's", "error"], lines)
    wrong = sum(max(one["error"].values()) > TOLERANCE for one in rows)
    return f"{text}\nmean {mean:.2f} of cuDNN's time; {wrong} of {len(rows)} wrong"


def main(out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None) -> None:
    """Check and time all cases."""
    rows = [row(case) for case in CASES]
    if out is not None:
        out.write_text(json.dumps({**provenance("depthwise"), "rows": rows}, indent=1))
    print(told(rows), flush=True)


if __name__ == "__main__":
    typer.run(main)
