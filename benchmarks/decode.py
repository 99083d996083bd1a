"""Time steps of language models of transformers, a token a sequence, with a cache of their keys.

``python -m benchmarks.decode --out FILE`` needs a CUDA GPU, torch and transformers; ``--dry-run``
compiles without a GPU. Models have random weights of ``bfloat16``. A step is
``tlx.with_static_cache`` by ``tlx.compile_torch``, and its launches are captured by a graph of
torch; beside it runs the model by ``torch.compile(mode="reduce-overhead")`` with transformers' own
``StaticCache``, as its documents say, and eagerly. Logits are compared with those of the whole
sequence in ``float32``. ``--weights int4|int8`` times steps whose weights are packed, too; theirs
are compared with those of the rounded weights, and of the weights that the model has.
"""

from __future__ import annotations

import copy
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import tvm_layout_ext as tlx
from benchmarks import models
from benchmarks.memory_bound import provenance
from tvm_layout_ext.models.quantised.group_quantise import GROUP, WORD, group_quantised
from tvm_layout_ext.models.quantised.pack_weights import (
    BITS,
    LEAST_COLUMNS,
    LEAST_WEIGHTS,
    TERMS,
)

#: Layers and sizes of each kind of model.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3-0.6B": (
        "Qwen3",
        {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
        },
    ),
    "TinyLlama-1.1B": (
        "Llama",
        {
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 22,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "vocab_size": 32000,
        },
    ),
    "Llama-3-8B, 4 layers": (
        "Llama",
        {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 4,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
        },
    ),
    # Of a layer's 32 experts 8; a token has 4 of them all the same.
    "GPT-OSS-20B, 2 layers": (
        "GptOss",
        {
            "num_hidden_layers": 2,
            "num_local_experts": 8,
            "vocab_size": 32000,
        },
    ),
}
#: Sequences, and places of a cache.
CASES = ((1, 1024), (1, 8192), (8, 1024))
#: Tokens before those that are timed, which are held against float32.
_PROMPT = 24


def made(name: str) -> Any:
    """A model with random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    kind, sizes = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**sizes, max_position_embeddings=16384)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        return getattr(transformers, f"{kind}ForCausalLM")(config).bfloat16().eval()


def compiled(model: Any, batch: int, length: int, weights: str | None = None) -> tuple[Any, float]:
    """A step of a model, and the seconds that its compilation took."""
    import torch

    begun = time.perf_counter()
    net = tlx.with_static_cache(model, length, batch)
    example = (torch.zeros(batch, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    return tlx.compile_torch(net, example, weights=weights), time.perf_counter() - begun


def rounded(model: Any, weights: str) -> Any:
    """A copy of a model whose linears have the weights that packed ones are."""
    import torch

    bits, copied = BITS[weights], copy.deepcopy(model)
    for one in copied.modules():
        n, k = one.weight.shape if isinstance(one, torch.nn.Linear) else (0, 1)
        if n * k < LEAST_WEIGHTS or n < LEAST_COLUMNS or k % TERMS[bits]:
            continue
        own = one.weight.detach()
        words, scales = group_quantised(own.float().cpu().numpy(), bits, "bfloat16")
        digits = words[..., None] >> np.arange(0, WORD, bits, dtype="uint32") & (1 << bits) - 1
        counts = digits.reshape(n, k).astype("float32") - (1 << bits - 1)
        weight = torch.from_numpy(counts * np.repeat(scales.astype("float32"), GROUP, 1))
        one.weight = torch.nn.Parameter(weight.to(own), requires_grad=False)
    return copied


def steps_of(model: Any, batch: int, length: int, compile_it: bool) -> Callable[[Any, Any], Any]:
    """A step by torch, with transformers' own cache."""
    import torch
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=length)
    config = model.config
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = config.num_key_value_heads
    cache.early_initialization(batch, heads, dim, torch.bfloat16, model.device)
    run = model.forward
    if compile_it:
        run = torch.compile(run, mode="reduce-overhead", fullgraph=True)

    def step(tokens: Any, places: Any) -> Any:
        given = {"position_ids": places[None], "past_key_values": cache, "use_cache": True}
        return run(tokens, **given).logits

    return step


def measured(name: str, batch: int, length: int, packed: Sequence[str]) -> dict[str, Any]:
    """Microseconds a step, of kernels and of whole calls, and errors of each contestant."""
    import torch

    model = made(name)
    ours, seconds = compiled(model, batch, length)
    tokens = torch.randint(0, model.config.vocab_size, (batch, _PROMPT), device="cuda")
    wanted = _in_float32(model, tokens)
    row: dict[str, Any] = {"model": name, "batch": batch, "length": length}
    row["compile"] = round(seconds, 1)
    for who in ("ours", "torch.compile", "eager"):
        try:
            step = ours if who == "ours" else steps_of(model, batch, length, who == "torch.compile")
            row[who] = _checked(step, tokens, wanted, captured=who == "ours")
        except Exception as error:  # A dash in the table.
            row[who] = {"failed": f"{type(error).__name__} {str(error)[:300]}"}
        print(name, batch, length, who, row[who], flush=True)
    for weights in packed:
        step, seconds = compiled(model, batch, length, weights)
        near = _in_float32(rounded(model, weights), tokens)
        found = _checked(step, tokens, near, captured=True)
        off = float((near - wanted).abs().max())
        row[f"ours, {weights}"] = {**found, "rounding": off, "compile": round(seconds, 1)}
        print(name, batch, length, weights, row[f"ours, {weights}"], flush=True)
    return row


def _checked(
    step: Callable[[Any, Any], Any], tokens: Any, wanted: Any, captured: bool
) -> dict[str, float]:
    """The largest error of a prompt's logits, a token a step, and times of a step."""
    import torch

    token, place = tokens[:, :1].clone(), torch.zeros(1, dtype=torch.int64, device="cuda")
    errors = []
    for at in range(_PROMPT):
        token.copy_(tokens[:, at : at + 1])
        place.fill_(at)
        got = step(token, place)[:, -1].float()
        errors.append((got - wanted[:, at]).abs().max().item())
    call = models.captured(step, token, place) if captured else partial(step, token, place)
    return {"error": max(errors), **_times(call)}


def _in_float32(model: Any, tokens: Any) -> Any:
    import torch

    with torch.no_grad():
        return copy.deepcopy(model).float()(tokens).logits


def _times(call: Callable[[], Any]) -> dict[str, float]:
    """Medians of a call's kernels, by torch's profiler, and of whole calls one after another."""
    kernels = models.profile(call, repeats=10)
    whole = models.in_turn(call, repeats=10, rounds=7)
    busy = sum(map(statistics.median, kernels.values()))
    return {"kernels": round(busy, 1), "whole": round(whole, 1)}


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    only: Annotated[str, typer.Option(help="Parts of names, with | between them.")] = "",
    case: Annotated[str, typer.Option(help="Only this one, as 1x1024.")] = "",
    weights: Annotated[str, typer.Option(help="Types of packed ones, with | between them.")] = "",
    dry_run: Annotated[bool, typer.Option(help="Compile everything, run nothing.")] = False,
) -> None:
    """Compile and time each model for each case."""
    import torch

    torch.set_grad_enabled(False)
    rows, packed = [], [one for one in weights.split("|") if one]
    for name in (one for one in MODELS if any(part in one for part in only.split("|"))):
        for batch, length in CASES:
            if case not in ("", f"{batch}x{length}"):
                continue
            if dry_run:
                for one in (None, *packed):
                    step, seconds = compiled(made(name), batch, length, one)
                    print(name, batch, length, one, round(seconds, 1), step, flush=True)
                continue
            rows.append(measured(name, batch, length, packed))
            if out is not None:
                found = {**provenance("decode"), "rows": rows}
                out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    typer.run(main)
