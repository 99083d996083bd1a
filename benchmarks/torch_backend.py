"""Time modules and ``generate`` by ``torch.compile``, as users call them, by both backends.

``python -m benchmarks.torch_backend --out FILE`` needs a CUDA GPU, torch, torchvision and
transformers. Weights are random, of ``float16`` or ``bfloat16``. A call is timed on the wall, one
after another, with all that Python does for it; a call of a language model is ``generate`` of 128
tokens behind 64, with transformers' static cache. Told are also the seconds of the first calls,
in which all is compiled, and the GPU memory that a contestant took beside the model. With
``--weights int4|int8`` ours is timed with packed weights, too, by graphs; random ones choose other
tokens.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import tvm_layout_ext as tlx
from benchmarks import models
from benchmarks.decode import made
from benchmarks.imported import MODELS
from benchmarks.memory_bound import provenance

#: Backends and modes of torch.compile.
CONTESTANTS: dict[str, dict[str, Any]] = {
    "eager": {},
    "inductor": {"backend": "inductor", "mode": "default"},
    "ours": {"backend": tlx.torch_backend, "mode": "default"},
    "inductor, reduce-overhead": {"backend": "inductor", "mode": "reduce-overhead"},
    "ours, reduce-overhead": {"backend": tlx.torch_backend, "mode": "reduce-overhead"},
}
#: Images at once, of ``float16``; 0 are tokens.
IMAGES = {"ResNet-50": (1, 16), "ViT-B/16, 4 layers": (1, 16), "BERT-base, 4 layers": (0,)}
LANGUAGE = ("Qwen3-0.6B", "Llama-3-8B, 4 layers")
_PROMPT, _NEW = 64, 128
#: Calls before those that are timed; by them all is compiled and captured.
_FIRST = 4
#: Makes a call of a contestant's options.
_Make = Callable[[dict[str, Any]], Callable[[], Any]]


def of_images(name: str, batch: int) -> _Make:
    """What makes a call of a network, of so many images, or of tokens."""
    import torch

    torch.manual_seed(0)
    net = MODELS[name]().eval().half().cuda()
    x = torch.randn(batch, 3, 224, 224).half().cuda() if batch else torch.randint(0, 1000, (4, 512))

    def call(options: dict[str, Any]) -> Callable[[], Any]:
        module = torch.compile(net, **options) if options else net
        given = x.cuda()
        return lambda: module(given)

    return call


def _of_language(name: str) -> _Make:
    import torch
    from transformers import CompileConfig

    model = made(name)
    tokens = torch.randint(0, 1000, (1, _PROMPT), device="cuda")
    settings = {"max_new_tokens": _NEW, "min_new_tokens": _NEW, "do_sample": False}

    def call(options: dict[str, Any]) -> Callable[[], Any]:
        how = {"compile_config": CompileConfig(**options)} if options else {"disable_compile": True}
        static = {"cache_implementation": "static", "pad_token_id": 0}
        return lambda: model.generate(tokens, **settings, **static, **how)

    return call


def packed(weights: str) -> dict[str, dict[str, Any]]:
    """Contestants whose weights have 4 or 8 bits; torch takes options or a mode."""
    return {
        f"ours, reduce-overhead, {one}": {
            "backend": tlx.torch_backend,
            "mode": None,
            "options": {"weights": one, "cuda_graphs": True},
        }
        for one in weights.split("|")
        if one
    }


def measured(make: _Make, contestants: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Of each contestant microseconds a call, seconds before, memory, and what differs."""
    import torch

    found, wanted = dict[str, Any](), make({})()
    for who, options in contestants.items():
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, begun = torch.cuda.mem_get_info()[0], time.perf_counter()
        try:
            call = make(options)
            for _ in range(_FIRST):
                got = call()
            torch.cuda.synchronize()
            first = time.perf_counter() - begun
            each = _wall(call)
            torch.cuda.empty_cache()
            memory = (free - torch.cuda.mem_get_info()[0]) / 1e6
            error = error_of(got, wanted)
            found[who] = {"call": each, "first": first, "memory": memory, "error": error}
        except Exception as error:  # A dash in the table.
            found[who] = {"failed": f"{type(error).__name__} {str(error)[:300]}"}
        print(who, found[who], flush=True)
    return found


def _wall(call: Callable[[], Any]) -> float:
    """Microseconds of a call, the median of some runs of several."""
    import torch

    begun = time.perf_counter()
    call()
    torch.cuda.synchronize()
    repeats = max(1, int(0.1 / (time.perf_counter() - begun)))
    return models.in_turn(call, repeats, rounds=5)


def error_of(got: Any, wanted: Any) -> float:
    """The largest difference as a share of the largest element; of tokens, the share of others."""
    if not wanted.is_floating_point():
        return float((got != wanted).float().mean())
    return float((got - wanted).abs().max() / wanted.abs().max())


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    only: Annotated[str, typer.Option(help="Parts of names, with | between them.")] = "",
    who: Annotated[str, typer.Option(help="Parts of contestants, with | between them.")] = "",
    weights: Annotated[str, typer.Option(help="Types of packed ones, with | between them.")] = "",
) -> None:
    """Time all models, one after the other."""
    import torch

    torch.set_grad_enabled(False)
    makes: dict[str, Callable[[], _Make]] = {
        f"{name}, {batch} images" if batch else name: lambda one=name, n=batch: of_images(one, n)
        for name, batches in IMAGES.items()
        for batch in batches
    }
    makes |= {f"{name}, generate": lambda one=name: _of_language(one) for name in LANGUAGE}
    chosen = {
        one: options
        for one, options in (CONTESTANTS | packed(weights)).items()
        if any(part in one for part in who.split("|"))
    }
    rows = []
    for name, make in makes.items():
        if not any(part in name for part in only.split("|")):
            continue
        print(name, flush=True)
        rows.append({"model": name, **measured(make(), chosen)})
        if out is not None:
            out.write_text(json.dumps({**provenance("torch_backend"), "rows": rows}, indent=1))


if __name__ == "__main__":
    typer.run(main)
