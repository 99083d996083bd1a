"""Time prompts of any length by one module, beside a module of one length, with a cache of keys.

``python -m benchmarks.prompts --out FILE`` needs a CUDA GPU, torch and transformers. Two layers of
language models in ``bfloat16`` take chunks of tokens by ``tlx.with_static_cache`` and
``tlx.compile_torch``, whose number of tokens is dynamic; "by mma.sync" multiplies up to 128 rows by
that instead of ``wgmma``. Times are sums of kernels, and those of products among them.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import typer

import tvm_layout_ext as tlx
from benchmarks import models
from benchmarks.decode import MODELS
from benchmarks.memory_bound import provenance
from tvm_layout_ext.models.any_size import any_rows

_PLACES, _LAYERS, _WORDS = 1024, 2, 32000
#: Tokens of a chunk, and of the module of one length.
_TOKENS, _ONE = (8, 32, 64, 128, 512), 64
_by_wgmma = any_rows._as_if_of


def _without_few(func: Any, size: Any, rows: int, *more: Any) -> Any:
    """No kernel by ``wgmma`` for few rows."""
    return None if rows == any_rows.FEW else _by_wgmma(func, size, rows, *more)


def compiled(name: str) -> dict[str, Any]:
    """Modules of a model, by how they were compiled."""
    import torch
    import transformers

    torch.manual_seed(0)
    kind, sizes = MODELS[name]
    sizes = {**sizes, "num_hidden_layers": _LAYERS, "vocab_size": _WORDS}
    config = getattr(transformers, f"{kind}Config")(**sizes, max_position_embeddings=_PLACES)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).bfloat16().cuda().eval()
    net = tlx.with_static_cache(model, _PLACES)
    example = torch.zeros(1, _ONE, dtype=torch.int64), torch.arange(_ONE)
    count = torch.export.Dim("n", min=2, max=_PLACES)
    dynamic = {"tokens": {1: count}, "places": {0: count}}
    found = {
        "any length": tlx.compile_torch(net, example, dynamic_shapes=dynamic),
        "this length": tlx.compile_torch(net, example),
    }
    with patch.object(any_rows, "_as_if_of", _without_few):
        found["by mma.sync"] = tlx.compile_torch(net, example, dynamic_shapes=dynamic)
    return found


def measured(name: str, modules: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Microseconds of a chunk's kernels, and of its products', by each module."""
    import torch

    given = torch.randint(0, 999, (1, tokens)).cuda(), torch.arange(tokens).cuda()
    row: dict[str, Any] = {"model": name, "tokens": tokens}
    for who, module in modules.items():
        if who == "this length" and tokens != _ONE:
            continue
        kernels = models.profile(lambda one=module: one(*given), repeats=10)
        times = {kernel: statistics.median(runs) for kernel, runs in kernels.items()}
        products = [us for kernel, us in times.items() if "matmul" in kernel or "gated" in kernel]
        row[who] = {"kernels": round(sum(times.values()), 1), "products": round(sum(products), 1)}
    print(row, flush=True)
    return row


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    only: Annotated[str, typer.Option(help="Parts of names, with | between them.")] = "Qwen3|Tiny",
) -> None:
    """Compile and time each model for each number of tokens."""
    import torch

    torch.set_grad_enabled(False)
    rows = []
    for name in (one for one in MODELS if any(part in one for part in only.split("|"))):
        modules = compiled(name)
        rows += [measured(name, modules, tokens) for tokens in _TOKENS]
        if out is not None:
            out.write_text(json.dumps({**provenance("prompts"), "rows": rows}, indent=1))


if __name__ == "__main__":
    typer.run(main)
