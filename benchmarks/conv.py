"""Check convolutions of ResNet-50 against float64, and time them beside cuDNN.

``python -m benchmarks.conv [--out FILE]`` needs a GPU of ``sm_90a`` and torch. Images lie channels
last, and cuDNN takes the fastest of its algorithms. Random pixels of each result are held against
sums in float64 first. ``--few`` takes images of few pixels: those of Stable Diffusion's denoiser,
two at once, and ResNet-50's last ones, one at a time; ``--narrow`` those of few channels.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Annotated, Any

import tvm
import typer

import tvm_layout_ext as tlx
from benchmarks.attention import on_stream
from benchmarks.gemm_gpu import medians
from benchmarks.memory_bound import provenance
from tvm_layout_ext.errors import LayoutExtError
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.text import columns
from tvm_layout_ext.tune.space.operator import Operator, find_operator

#: Side of an image, its channels, those of the result, side of the window, stride.
CASES = (
    (56, 64, 64, 1, 1),
    (56, 64, 64, 3, 1),
    (56, 64, 256, 1, 1),
    (56, 256, 64, 1, 1),
    (56, 256, 128, 1, 1),
    (56, 128, 128, 3, 2),
    (56, 256, 512, 1, 2),
    (28, 128, 512, 1, 1),
    (28, 512, 128, 1, 1),
    (28, 128, 128, 3, 1),
    (28, 512, 256, 1, 1),
    (28, 256, 256, 3, 2),
    (28, 512, 1024, 1, 2),
    (14, 256, 1024, 1, 1),
    (14, 1024, 256, 1, 1),
    (14, 256, 256, 3, 1),
    (14, 1024, 512, 1, 1),
    (14, 512, 512, 3, 2),
    (14, 1024, 2048, 1, 2),
    (7, 512, 2048, 1, 1),
    (7, 2048, 512, 1, 1),
    (7, 512, 512, 3, 1),
)
#: The same, with the images before.
FEW = (
    *((2, 8, channels, 1280, 3, 1) for channels in (1280, 2560)),
    *((2, 16, channels, 1280, 3, 1) for channels in (640, 1280, 1920, 2560)),
    *((2, 32, channels, 640, 3, 1) for channels in (320, 640, 960, 1280, 1920)),
    *((2, 64, channels, 320, 3, 1) for channels in (320, 640, 960)),
    *((2, 64, 320, 320, 3, 2), (2, 32, 640, 640, 3, 2), (2, 16, 1280, 1280, 3, 2)),
    *((1, 14, 256, 256, 3, 1), (1, 7, 512, 512, 3, 1), (1, 14, 512, 512, 3, 2)),
)
#: Channels that fill no whole steps of 64, as in U-Nets, EfficientNetV2 and Inception.
NARROW = (
    (16, 112, 32, 32, 3, 1),
    (16, 112, 32, 64, 3, 1),
    (16, 112, 24, 24, 3, 1),
    (64, 112, 16, 32, 3, 2),
    (64, 56, 32, 64, 3, 2),
    (64, 56, 48, 48, 3, 1),
    (64, 56, 96, 96, 3, 1),
    (64, 28, 160, 160, 3, 1),
    (4, 512, 32, 32, 3, 1),
)
BATCH, ROUNDS, SAMPLES = 64, 9, 64
Case = tuple[int, int, int, int, int, int]


@dataclass(frozen=True)
class Wishes:
    """Values of knobs that are timed beside the default's."""

    tiles: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    slices: tuple[int, ...] = ()

    def configs(self, usual: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The default, and others of ``wgmma``."""
        for tile in (usual["wgmma"], *self.tiles):
            for group in (usual["group"], *self.groups):
                for count in (usual["split_k"], *self.slices):
                    yield {**usual, "wgmma": tile, "group": group, "split_k": count}


def problem(case: Case) -> tuple[Operator, tuple[int, ...]]:
    """Operator and shape of a case."""
    batch, side, channels, out, window, stride = case
    operator = find_operator("conv2d" if stride == 1 else "conv2d_strided")
    return operator, (batch, side, side, channels, out, window, window)


def kernels(case: Case, wishes: Wishes) -> dict[str, Any]:
    """Built kernels by name, the default first."""
    operator, shape = problem(case)
    target, gpu = tlx.cuda_target("sm_90a"), architecture("sm_90a")
    usual = operator.default_config()
    usual |= operator.fit(shape, "float16", usual, gpu) if operator.fit else {}
    found: dict[str, Any] = {}
    for config in wishes.configs(usual):
        name = "ours {wgmma} {group} {split_k}".format(**config)
        if name in found or operator.refuse(shape, "float16", config, gpu):
            continue
        with target:
            sch = operator.schedule(operator.compute(shape, "float16"), config)
        try:
            found[name] = tvm.compile(sch.mod, target=target)["main"]
        except LayoutExtError as error:
            print(case, name, error, flush=True)
    return found


def error_of(case: Case, image: Any, weight: Any, out: Any) -> float:
    """Largest difference of some pixels from float64, as a share of the largest sum."""
    import torch

    *_, window, stride = case
    pad, (n, p, q, _) = window // 2, out.shape
    wide = torch.nn.functional.pad(image.permute(0, 2, 3, 1), (0, 0, pad, pad, pad, pad))
    at = [torch.randint(0, e, (SAMPLES,), device="cuda") for e in (n, p, q)]
    sums = torch.zeros((SAMPLES, out.shape[-1]), dtype=torch.float64, device="cuda")
    for y in range(window):
        for x in range(window):
            pixels = wide[at[0], at[1] * stride + y, at[2] * stride + x].double()
            sums += pixels @ weight.permute(0, 2, 3, 1)[:, y, x].double().t()
    found = out[at[0], at[1], at[2]].double()
    return float(((found - sums).abs().max() / sums.abs().max()).nan_to_num(float("inf")))


def row(case: Case, wishes: Wishes) -> dict[str, Any]:
    """Check and time one case."""
    import torch

    batch, side, channels, out, window, stride = case
    last = {"memory_format": torch.channels_last}
    half = {"device": "cuda", "dtype": torch.float16}
    image = torch.randn((batch, channels, side, side), **half).to(**last)
    weight = torch.randn((out, channels, window, window), **half).to(**last)
    calls: dict[str, Callable[[], Any]] = {
        "cudnn": lambda: torch.nn.functional.conv2d(image, weight, None, stride, window // 2)
    }
    made = calls["cudnn"]().permute(0, 2, 3, 1)
    errors = {"cudnn": error_of(case, image, weight, made)}
    for name, kernel in kernels(case, wishes).items():
        mine = torch.full_like(made, float("nan")).contiguous()
        given = (image.permute(0, 2, 3, 1), weight.permute(0, 2, 3, 1), mine)
        views = [tvm.runtime.from_dlpack(one) for one in given]
        kernel(*views)
        torch.cuda.synchronize()
        errors[name] = error_of(case, image, weight, mine)
        if not bool(mine.isfinite().all()):
            errors[name] = float("inf")
        calls[name] = on_stream(kernel, views)
    operator, shape = problem(case)
    seconds = {name: one for name, (one, _) in medians(calls, ROUNDS).items()}
    micro = {name: round(one * 1e6, 2) for name, one in seconds.items()}
    tflops = {name: round(operator.flops(shape) / one / 1e12, 1) for name, one in seconds.items()}
    return {"case": case, "us": micro, "tflops": tflops, "error": errors}


def told(rows: list[dict[str, Any]]) -> str:
    """Table of the default beside cuDNN and the best of ours, and the mean ratio."""
    lines, ratios, best = [], [], []
    for one in rows:
        ours = {name: us for name, us in one["us"].items() if name != "cudnn"}
        first, fastest = next(iter(ours)), min(ours, key=ours.__getitem__)
        theirs = one["us"]["cudnn"]
        ratios.append(theirs / ours[first])
        best.append(theirs / ours[fastest])
        lines.append(
            [
                "x".join(map(str, one["case"])),
                first.removeprefix("ours "),
                f"{ours[first]:.1f}",
                f"{theirs:.1f}",
                f"{ratios[-1]:.2f}",
                fastest.removeprefix("ours "),
                f"{ours[fastest]:.1f}",
                f"{max(one['error'][name] for name in ours):.1e}",
            ]
        )
    head = [
        "images, side, C, K, window, stride",
        "tile, group, slices",
        "us",
        "cuDNN",
        "ratio",
        "best",
        "us",
        "error",
    ]
    means = [exp(sum(map(log, of)) / len(of)) for of in (ratios, best)]
    text = columns(head, lines)
    return f"{text}\ngeometric mean {means[0]:.3f} by default, {means[1]:.3f} the best"


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    only: Annotated[str, typer.Option(help="Numbers of cases, with commas between.")] = "",
    tiles: Annotated[str, typer.Option(help="Other tiles, with commas between.")] = "",
    groups: Annotated[str, typer.Option(help="Other groups, with commas between.")] = "",
    slices: Annotated[str, typer.Option(help="Other slices of K, with commas between.")] = "",
    few: Annotated[bool, typer.Option(help="Take images of few pixels.")] = False,
    narrow: Annotated[bool, typer.Option(help="Take images of few channels.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Build everything, run nothing.")] = False,
) -> None:
    """Print a table, and write a file."""
    usual = tuple((BATCH, *one) for one in CASES)
    every = NARROW if narrow else FEW if few else usual
    picked = [every[int(i)] for i in only.split(",")] if only else every
    counts = (tuple(int(one) for one in text.split(",") if one) for text in (groups, slices))
    wishes = Wishes(tuple(one for one in tiles.split(",") if one), *counts)
    if dry_run:
        for case in picked:
            print(case, list(kernels(case, wishes)), flush=True)
        return
    import torch

    torch.backends.cudnn.benchmark = True
    rows: list[dict[str, Any]] = []
    for case in picked:
        rows.append(row(case, wishes))
        print(json.dumps(rows[-1]), flush=True)
        if out is not None:
            out.write_text(json.dumps({**provenance("conv"), "rows": rows}))
    print(told(rows))


if __name__ == "__main__":
    typer.run(main)
