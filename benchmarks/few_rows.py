"""Time few rows by small weights of 16 bits: as they lie, by ``wgmma``, and by cuBLAS.

``python -m benchmarks.few_rows --out FILE`` needs a CUDA GPU and torch. A module adds up products
of the same rows by weights that together are more than the second-level cache holds; launches are
captured by a graph, and a product takes its share of a replay. Results are held against float32.
"""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import tvm_layout_ext as tlx
from benchmarks.memory_bound import provenance
from benchmarks.models import captured, elapsed
from tvm_layout_ext.models import rules

#: Columns and terms.
SHAPES = ((1024, 2048), (4096, 1024), (1024, 3072), (2048, 2048), (1024, 4096), (2048, 5632))
_RULE, _BYTES = "few rows", 110e6


@contextmanager
def _without(rule: str) -> Any:
    kept = rules.RULES[rule]
    rules.RULES[rule] = lambda func, target: None
    try:
        yield
    finally:
        rules.RULES[rule] = kept


def _module(columns: int, terms: int) -> Any:
    import torch

    class Sum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleList(
                torch.nn.Linear(terms, columns, bias=False, dtype=torch.bfloat16)
                for _ in range(max(6, math.ceil(_BYTES / (columns * terms * 2))))
            )

        def forward(self, x: Any) -> Any:
            return sum(one(x) for one in self.parts)

    return Sum().cuda().eval()


def measured(rows: int, columns: int, terms: int) -> dict[str, Any]:
    """Microseconds of a product by each contestant, and errors of the sums."""
    import torch

    net = _module(columns, terms)
    x = torch.randn(1, rows, terms, device="cuda", dtype=torch.bfloat16)
    wanted = sum(x.float() @ one.weight.float().T for one in net.parts)
    ours = tlx.compile_torch(net, (x,))
    with _without(_RULE):
        other = tlx.compile_torch(net, (x,))
    row: dict[str, Any] = {"rows": rows, "columns": columns, "terms": terms}
    contestants = {"ours": ours, "without": other, "torch": net}
    for who, module in contestants.items():
        call = captured(module, x)
        took = elapsed(call, 30)
        error = ((call().float() - wanted).norm() / wanted.norm()).item()
        row[who] = {"us": round(took / len(net.parts), 2), "error": round(error, 5)}
    row["ours"]["rules"] = sorted({one.rule for one in ours.choices})
    print(row, flush=True)
    return row


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    rows: Annotated[str, typer.Option(help="Numbers of rows, with commas between.")] = "2,8",
) -> None:
    """Time all shapes."""
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        found = [measured(m, *shape) for shape in SHAPES for m in map(int, rows.split(","))]
    if out is not None:
        out.write_text(json.dumps({**provenance("few_rows"), "rows": found}, indent=1))


if __name__ == "__main__":
    typer.run(main)
