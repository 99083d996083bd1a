"""Seconds from ``torch.compile`` to a first result, with nothing on disk, and in a new process.

``python -m benchmarks.first_results --out FILE`` needs a CUDA GPU, torch, torchvision and
transformers. Each start is a process of its own, whose imports, model and first use of the GPU are
not counted; the second finds on disk what the first has kept there, by our caches as by torch's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.decode import made
from benchmarks.memory_bound import provenance
from benchmarks.torch_backend import CONTESTANTS, IMAGES, LANGUAGE, error_of, of_images

BACKENDS = ("inductor", "ours")
#: Images of ``float16``, 0 for tokens as ``torch_backend`` has them; tokens of a language model.
INPUTS = {name: counts[-1] for name, counts in IMAGES.items()} | dict.fromkeys(LANGUAGE, 64)
_TIMEOUT = 180


def started(name: str, backend: str) -> float:
    """Seconds of the first call of a model."""
    import torch

    torch.set_grad_enabled(False)
    make = of_images if name in IMAGES else _of_tokens
    call = make(name, INPUTS[name])
    wanted = call({})()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    found = call(CONTESTANTS[backend])()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    error = error_of(found, wanted)
    if error > 0.1:
        raise RuntimeError(f"{name} by {backend} is off by {error:.2g}.")
    return seconds


def _of_tokens(name: str, count: int) -> Any:
    """What makes a call of a language model, from tokens to logits."""
    import torch

    class Logits(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = made(name)

        def forward(self, tokens: Any) -> Any:
            return self.net(tokens, use_cache=False).logits

    net, tokens = Logits().eval(), torch.randint(0, 1000, (1, count)).cuda()

    def call(options: dict[str, Any]) -> Any:
        module = torch.compile(net, **options) if options else net
        return lambda: module(tokens)

    return call


def _in_process(name: str, backend: str, folder: str) -> float | None:
    """:func:`started` by a new process that keeps what it makes in a folder; None if it fails."""
    places = {"TVM_LAYOUT_EXT_CACHE": f"{folder}/ours", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/it"}
    command = [sys.executable, "-m", __spec__.name, "--one", name, "--backend", backend]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **places, "TRITON_CACHE_DIR": f"{folder}/triton"},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=True,
        )
    except subprocess.SubprocessError as error:
        print(str(getattr(error, "stderr", error))[-400:], flush=True)
        return None
    return float(done.stdout.splitlines()[-1])


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    only: Annotated[str, typer.Option(help="Parts of names, with | between them.")] = "",
    who: Annotated[str, typer.Option(help="Parts of backends, with | between them.")] = "",
    one: Annotated[str, typer.Option(help="The model of this process.")] = "",
    backend: Annotated[str, typer.Option(help="The backend of this process.")] = "ours",
) -> None:
    """Start each model by each backend twice."""
    if one:
        print(started(one, backend))
        return
    rows = []
    for name in INPUTS:
        if not any(part in name for part in only.split("|")):
            continue
        row: dict[str, Any] = {"model": name, "input": INPUTS[name]}
        for each in BACKENDS:
            if any(part in each for part in who.split("|")):
                with tempfile.TemporaryDirectory() as folder:
                    row[each] = [_in_process(name, each, folder) for _ in range(2)]
        rows.append(row)
        print(row, flush=True)
        if out is not None:
            out.write_text(json.dumps({**provenance("first_results"), "rows": rows}, indent=1))


if __name__ == "__main__":
    typer.run(main)
