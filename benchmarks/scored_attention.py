"""Time attention whose scores are capped, beside a sink, sloped or by cosines, as models write it.

``python -m benchmarks.scored_attention --out FILE`` needs a CUDA GPU and torch; ``--dry-run``
compiles ours without a GPU. Scores of Gemma 2, GPT-OSS, MPT and Swin-V2 are written out as
``transformers`` does, and ``tlx.compile_torch`` makes one kernel of each. Beside it run the module
eagerly and by torch.compile, and torch's ``flex_attention``. Times are sums of kernels and whole
runs; errors are the largest beside float64, of the first and the last of a batch.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import tvm_layout_ext as tlx
from benchmarks import models
from benchmarks.memory_bound import provenance
from benchmarks.scored_modules import Case, flex, given, module

#: What :data:`benchmarks.scored_modules.Case` has.
ROWS: tuple[Case, ...] = (
    *(("cap", b, n, 16, 8, 256, n) for b, n in ((1, 1024), (1, 4096), (4, 2048))),
    *(("cap", b, n, 16, 8, 256, 1024) for b, n in ((1, 4096), (4, 2048))),
    *(("sink", b, n, 64, 8, 64, n) for b, n in ((1, 1024), (1, 4096), (4, 2048))),
    ("sink", 1, 4096, 64, 8, 64, 128),
    *(("slopes", b, n, 32, 32, 128, n) for b, n in ((1, 1024), (1, 4096), (4, 2048))),
    *(("cosine", b, 64, h, h, 32, 64) for b, h in ((1024, 3), (256, 6), (64, 12))),
    ("cosine", 256, 256, 3, 3, 32, 256),
)  # fmt: skip


def timed(call: Callable[[], Any], wanted: dict[int, Any]) -> dict[str, float]:
    """Microseconds of a call's kernels, and of whole runs, and the largest error."""
    out = call()
    off = [
        float((out[at].double() - one).abs().nan_to_num(float("inf")).max())
        for at, one in wanted.items()
    ]
    busy = sum(map(statistics.median, models.profile(call).values()))
    return {"kernels": round(busy, 1), "whole": round(models.wall(call), 1), "error": max(off)}


def row(case: Case, fast: Any, net: Any, dtype: Any) -> dict[str, Any]:
    """Times and errors of each contestant, or what it raises."""
    import torch

    torch._dynamo.reset()  # It compiles a function eight times at most.
    net, inputs = net.cuda(), given(case, dtype, "cuda")
    wanted = {at: net(*(one[at][None].double() for one in inputs))[0] for at in (0, -1)}
    makes: dict[str, Callable[[], Callable[..., Any]]] = {
        "ours": lambda: fast,
        "eager": lambda: net,
        "torch.compile": lambda: torch.compile(net, dynamic=False, fullgraph=True),
        "flex": lambda: torch.compile(flex(case, net), dynamic=False, fullgraph=True),
    }
    found: dict[str, Any] = {"case": case}
    for who, make in makes.items():
        try:
            call = make()
            found[who] = timed(lambda one=call: one(*inputs), wanted)
        except Exception as error:  # A dash in the table.
            found[who] = {"failed": f"{type(error).__name__} {str(error)[:300]}"}
        torch.cuda.empty_cache()
    return found


def told(found: dict[str, Any]) -> str:
    """A line of a row: kernels, whole runs, and errors."""
    kind, batch, rows, heads, kept, columns, reach = found["case"]
    parts = [
        f"{who} - ({one['failed'].partition(' ')[0]})"
        if "failed" in one
        else f"{who} {one['kernels']} ({one['whole']}) us, off {one['error']:.1e}"
        for who, one in found.items()
        if who != "case"
    ]
    return f"{kind} {batch}x{rows}x{heads}/{kept}x{columns}, {reach} keys: " + "; ".join(parts)


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    only: Annotated[str, typer.Option(help="Kinds of scores, with | between them.")] = "",
    dtype: Annotated[str, typer.Option(help="Type of Q, K and V.")] = "float16",
    dry_run: Annotated[bool, typer.Option(help="Compile ours, run nothing.")] = False,
) -> None:
    """Compile and time each row."""
    import torch

    torch.set_grad_enabled(False)
    found, type_ = [], getattr(torch, dtype)
    for case in (one for one in ROWS if any(part in one[0] for part in only.split("|"))):
        torch.manual_seed(0)
        net = module(case, type_)
        fast = tlx.compile_torch(net, given(case, type_, "cpu"))
        (choice,) = fast.choices
        assert choice.rule == "attention", choice
        if dry_run:
            print(case, choice.text, flush=True)
            continue
        found.append(row(case, fast, net, type_))
        print(told(found[-1]), flush=True)
        if out is not None:
            text = {**provenance("scored_attention"), "dtype": dtype, "rows": found}
            out.write_text(json.dumps(text, indent=1))


if __name__ == "__main__":
    typer.run(main)
