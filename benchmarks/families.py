"""Time models that this package was not written for: one of each family of timm, and users' nets.

``python -m benchmarks.families --out FILE`` needs a CUDA GPU, torch, torchvision and timm. A model
has random weights of ``float16``, and 16 images of its own size. It is compiled by
``tlx.compile_torch`` and by ``torch.compile``; then a graph of either is replayed. Errors of ours
and of eager torch are largest ones against ``float32``, as a share of the largest element.
``--only`` takes parts of names with ``|`` between them: all at once want 400 GB of memory.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import tvm_layout_ext as tlx
from benchmarks import imported, models
from benchmarks.memory_bound import provenance
from tvm_layout_ext.text import columns

#: Images at once.
BATCH = 16
#: Of a family of timm the smallest model of at least 5 million parameters.
FAMILIES = [
    "cait_xxs24_224",
    "coat_tiny",
    "crossvit_tiny_240",
    "csatv2",
    "davit_tiny",
    "deit_tiny_patch16_224",
    "edgenext_small",
    "efficientformerv2_s1",
    "efficientvit_b1",
    "focalnet_tiny_srf",
    "gcvit_xxtiny",
    "ghostnet_100",
    "levit_128s",
    "maxvit_pico_rw_256",
    "mobilevit_s",
    "mvitv2_tiny",
    "nest_tiny",
    "nextvit_small",
    "pit_ti_distilled_224",
    "poolformerv2_s12",
    "pvt_v2_b1",
    "repvit_m1",
    "sam2_hiera_tiny",
    "swinv2_cr_tiny_224",
    "tiny_vit_5m_224",
    "twins_svt_small",
    "vit_tiny_patch16_224",
    "vitamin_small_224",
    "volo_d1_224",
    "xcit_tiny_12_p8_224",
]


def made(name: str) -> tuple[Any, list[Any]]:
    """A model of 16 bits, and its inputs."""
    import torch

    from benchmarks.user_nets import NETS

    torch.manual_seed(0)
    if name in NETS:
        make, shapes = NETS[name]
        net = make()
    else:
        import timm

        net = timm.create_model(name, pretrained=False)
        shapes = (((BATCH, *net.default_cfg["input_size"]), "float16"),)
    given = [
        torch.randint(0, 100000, shape) if dtype == "int64" else torch.randn(shape).half()
        for shape, dtype in shapes
    ]
    return net.half().eval(), given


def prepared(name: str) -> tuple[dict[str, Any], dict[str, Callable[[], Any]]]:
    """What is told of a model's compilation, and its calls."""
    net, given = made(name)
    begun = time.perf_counter()
    fast = tlx.compile_torch(net, given)
    return imported.beside(net, given, fast, time.perf_counter() - begun)


def measured(_name: str, calls: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Errors, times of graphs, and kernels of both."""
    errors = models.errors_of({name: calls[name] for name in ("ours", "torch eager", "float32")})
    both = ("ours", "torch.compile")
    graphs = {who: models.elapsed(models.captured(calls[who])) for who in both}
    kernels = {
        who: {name: statistics.median(one) for name, one in models.profile(calls[who], 4).items()}
        for who in both
    }
    sums = {who: sum(one.values()) for who, one in kernels.items()}
    return {"errors": errors, "graphs": graphs, "sums": sums, "kernels": kernels}


def told(rows: list[dict[str, Any]]) -> str:
    """All models side by side."""
    lines = []
    for row in rows:
        if "graphs" not in row:
            lines.append([row["model"], *["-"] * 5])
            continue
        ours, theirs = (row["graphs"][who] for who in ("ours", "torch.compile"))
        errors = [f"{row['errors'][who]:.1e}" for who in ("ours", "torch eager")]
        lines.append(
            [row["model"], f"{ours:.0f}", f"{theirs:.0f}", f"{ours / theirs:.2f}", *errors]
        )
    return columns(["graphs, us", "ours", "torch.compile", "ratio", "error", "of eager"], lines)


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    only: Annotated[str, typer.Option(help="Parts of names, with | between them.")] = "",
) -> None:
    """Compile all at once, each in a process, then time one after the other."""
    from benchmarks.user_nets import NETS

    names = [one for one in (*FAMILIES, *NETS) if any(part in one for part in only.split("|"))]
    rows = []
    for row in models.rows_of(names, prepared, measured):
        rows.append(row)
        if out is not None:
            out.write_text(json.dumps({**provenance("families"), "rows": rows}, indent=1))
    print(told(rows), flush=True)


if __name__ == "__main__":
    typer.run(main)
