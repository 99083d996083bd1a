"""A decoder of LLaMA's kind with TVM's paged cache: prompts, then tokens of a whole batch.

``python -m benchmarks.llm --out FILE`` needs a CUDA GPU and torch: it compiles the module by
``tlx.relax_pipeline`` and by TVM's own pipeline for CUDA, compares the logits of both, and sums up
their kernels' times. Kernels of the cache are TVM's in both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tvm
import typer
from tvm import relax, te
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache, RopeMode, TIRPagedKVCache
from tvm.runtime import ShapeTuple
from tvm.target import Target

import tvm_layout_ext as tlx
from tvm_layout_ext.text import columns

op = nn.op
#: Sequences, tokens of each prompt, and words that follow one by one.
STEPS = ((1, 1024), (4, 512), (16, 1))


@dataclass(frozen=True)
class Sizes:
    """Extents of a model."""

    layers: int = 2
    dims: int = 1024
    heads: int = 16
    groups: int = 4
    wide: int = 2816
    words: int = 4000
    dtype: str = "float16"

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.dims // self.heads


class _Layer(nn.Module):  # type: ignore[misc]
    """Attention over the cache, and a gated MLP."""

    def __init__(self, sizes: Sizes, place: int) -> None:
        self.sizes, self.place = sizes, place
        dims, wide = sizes.dims, sizes.wide
        self.norm1 = nn.RMSNorm(dims, -1, 1e-5, bias=False)
        self.norm2 = nn.RMSNorm(dims, -1, 1e-5, bias=False)
        self.qkv = nn.Linear(dims, (sizes.heads + 2 * sizes.groups) * sizes.head, bias=False)
        self.out = nn.Linear(dims, dims, bias=False)
        self.gate = nn.Linear(dims, 2 * wide, bias=False)
        self.down = nn.Linear(wide, dims, bias=False)

    def forward(self, x: nn.Tensor, cache: PagedKVCache) -> nn.Tensor:
        b, t, d = x.shape
        sizes = self.sizes
        qkv = op.reshape(
            self.qkv(self.norm1(x)), (b, t, sizes.heads + 2 * sizes.groups, sizes.head)
        )
        mixed = cache.attention_with_fused_qkv(self.place, qkv, sizes.heads, sizes.head**-0.5)
        x = x + self.out(op.reshape(mixed, (b, t, d)))
        gate, up = op.split(self.gate(self.norm2(x)), 2, axis=-1)
        return x + self.down(op.silu(gate) * up)


class Decoder(nn.Module):  # type: ignore[misc]
    """Embedding, layers, norm and head; a function for a prompt and one for a batch's tokens."""

    def __init__(self, sizes: Sizes, target: Target) -> None:
        self.sizes, self.target = sizes, target
        self.words = nn.Embedding(sizes.words, sizes.dims)
        self.layers = nn.ModuleList([_Layer(sizes, place) for place in range(sizes.layers)])
        self.norm = nn.RMSNorm(sizes.dims, -1, 1e-5, bias=False)
        self.head = nn.Linear(sizes.dims, sizes.words, bias=False)

    def mixed(self, tokens: nn.Tensor, cache: PagedKVCache) -> nn.Tensor:
        """All layers."""
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x, cache)
        return x

    def prefill(self, tokens: nn.Tensor, cache: PagedKVCache) -> nn.Tensor:
        """Logits of the word after a prompt."""

        def last(x: te.Tensor) -> te.Tensor:
            batch, length, dims = x.shape
            return te.compute((batch, 1, dims), lambda b, _, d: x[b, length - 1, d], name="last")

        x = op.tensor_expr_op(last, "last", [self.mixed(tokens, cache)])
        return self.head(self.norm(x)).astype("float32")

    def decode(self, tokens: nn.Tensor, cache: PagedKVCache) -> nn.Tensor:
        """Logits of the next word of each of a batch."""
        return self.head(self.norm(self.mixed(tokens, cache))).astype("float32")

    def create_cache(self, batch: Any, total: Any, chunk: Any, page: Any) -> PagedKVCache:
        """The cache with TVM's kernels for attention."""
        sizes = self.sizes
        return TIRPagedKVCache(
            attn_kind="mha",
            max_batch_size=batch,
            max_total_seq_len=total,
            prefill_chunk_size=chunk,
            page_size=page,
            support_sliding_window=0,
            layer_partition=relax.ShapeExpr([0, sizes.layers]),
            num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            num_key_value_heads=sizes.groups,
            qk_head_dim=sizes.head,
            v_head_dim=sizes.head,
            mla_original_qk_head_dim=0,
            mla_original_v_head_dim=0,
            rope_mode=RopeMode.NORMAL,
            rope_scale=1,
            rope_theta=10000,
            rope_scaling={},
            rope_ext_factors=relax.prim_value(0),
            rotary_dim=sizes.head,
            enable_disaggregation=False,
            dtype=sizes.dtype,
            target=self.target,
        )


def decoder(sizes: Sizes, target: Target) -> tuple[tvm.IRModule, list[tuple[tuple[int, ...], str]]]:
    """The Relax module, and shapes and types of its parameters."""
    model = Decoder(sizes, target)
    model.to(sizes.dtype)
    cache = nn.spec.Object(object_type=PagedKVCache)
    plain = {"param_mode": "packed", "effect_mode": "none"}
    spec = {
        "prefill": {
            "tokens": nn.spec.Tensor(["batch", "length"], "int32"),
            "cache": cache,
            "$": plain,
        },
        "decode": {"tokens": nn.spec.Tensor(["batch", 1], "int32"), "cache": cache, "$": plain},
        "create_cache": {
            **dict.fromkeys(("batch", "total", "chunk", "page"), int),
            "$": {"param_mode": "none", "effect_mode": "none"},
        },
    }
    module, parameters = model.export_tvm(spec=spec)
    return module, [(tuple(one.shape), str(one.dtype)) for _, one in parameters]


class Session:
    """A compiled module on a device, with parameters of 16 bits and a cache of its own."""

    def __init__(
        self,
        executable: Any,
        device: Any,
        parameters: Sequence[tuple[tuple[int, ...], str]],
        total: int = 1 << 15,
    ) -> None:
        rng = np.random.default_rng(0)
        self.device = device
        self.main = relax.VirtualMachine(executable, device)
        self.parameters = [
            tvm.runtime.tensor(_values(shape, rng).astype("float16").astype(dtype), device)
            for shape, dtype in parameters
        ]
        sizes = (ShapeTuple([n]) for n in (32, total, total // 2, 16))
        self.cache = self.main["create_cache"](*sizes)

    def add(self, *sequences: int) -> None:
        """Begin sequences."""
        for one in sequences:
            self._call("add_sequence", one)

    def remove(self, *sequences: int) -> None:
        """Forget sequences."""
        for one in sequences:
            self._call("remove_sequence", one)

    def step(self, tokens: np.ndarray, *sequences: int) -> np.ndarray:
        """Logits behind tokens of some sequences, as many of each."""
        count = tokens.shape[1]
        self._call("begin_forward", ShapeTuple(sequences), ShapeTuple([count] * len(sequences)))
        name = "prefill" if count > 1 else "decode"
        given = tvm.runtime.tensor(tokens.astype("int32"), self.device)
        found = self.main[name](given, self.cache, self.parameters).numpy()
        self._call("end_forward")
        return np.asarray(found, "float32")

    def _call(self, name: str, *given: Any) -> None:
        tvm.get_global_func(f"vm.builtin.kv_state_{name}")(self.cache, *given)


def _values(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    scale = 1 if len(shape) == 1 else shape[-1] ** -0.5
    return rng.standard_normal(shape, np.float32) * np.float32(scale)


def conversation(session: Session, words: int) -> list[np.ndarray]:
    """Logits of prompts and tokens, while sequences come and go."""
    rng = np.random.default_rng(1)

    def step(count: int, *sequences: int) -> np.ndarray:
        return session.step(rng.integers(0, words, (len(sequences), count)), *sequences)

    session.add(0, 1, 2)
    found = [step(7, 0, 1, 2), step(1, 0, 1, 2), step(1, 0, 2)]
    session.remove(1)
    session.add(3)
    found += [step(70, 3), step(5, 0, 2), step(1, 3, 0, 2), step(1, 3)]
    session.remove(0, 2, 3)
    return found


def compiled(sizes: Sizes, target: Target, pipeline: Any = None) -> Any:
    """The module for a target, by a pipeline or TVM's own."""
    return tvm.compile(decoder(sizes, target)[0], target, relax_pipeline=pipeline or "default")


def _times(session: Session, words: int, batch: int, count: int) -> float:
    """Microseconds of the kernels of a step: of prompts, or of a token after 1024 others."""
    from benchmarks.models import FEW, profile

    rng = np.random.default_rng(2)
    sequences = range(batch)
    session.add(*sequences)
    if count == 1:
        for one in sequences:
            session.step(rng.integers(0, words, (1, 1024)), one)
    tokens = rng.integers(0, words, (batch, count))
    runs = profile(lambda: session.step(tokens, *sequences), FEW)
    session.remove(*sequences)
    return sum(float(np.median(one)) for name, one in runs.items() if "Mem" not in name)


def _built(who: str, sizes: Sizes) -> bytes:
    target = tlx.default_target()
    pipeline = tlx.relax_pipeline(target) if who == "ours" else None
    compiled(sizes, target, pipeline).export_library(path := f"/tmp/llm_{who}_{sizes.dims}.so")
    return path.encode()


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    dims: Annotated[int, typer.Option(help="Width of the timed model.")] = 2048,
) -> None:
    """Compare and time both pipelines."""
    small = Sizes(dims=256, heads=4, groups=2, wide=704, words=500)
    large = Sizes(layers=2, dims=dims, heads=dims // 64, groups=8, wide=4 * dims, words=32000)
    cases = [(who, sizes) for sizes in (small, large) for who in ("ours", "dlight")]
    with ProcessPoolExecutor(4, get_context("spawn")) as pool:
        paths = list(pool.map(_built, *zip(*cases, strict=True)))
    device, cpu = tvm.cuda(0), Target("llvm")
    sessions = [
        Session(tvm.runtime.load_module(path.decode()), device, decoder(sizes, cpu)[1])
        for path, (_, sizes) in zip(paths, cases, strict=True)
    ]
    exact = replace(small, dtype="float32")
    given = decoder(exact, cpu)[1]
    want = conversation(Session(compiled(exact, cpu), tvm.cpu(), given, 1 << 10), small.words)
    rows: list[dict[str, Any]] = []
    for (who, sizes), session in zip(cases, sessions, strict=True):
        if sizes is large and who == "ours":
            want = conversation(sessions[-1], large.words)  # Of this size by dlight
        found = conversation(session, sizes.words)
        pairs = zip(found, want, strict=True)
        errors = [float(np.abs(one - other).max() / np.abs(other).max()) for one, other in pairs]
        row: dict[str, Any] = {"who": who, "dims": sizes.dims, "errors": errors}
        if sizes is large:
            row["us"] = [_times(session, sizes.words, *step) for step in STEPS]
        rows.append(row)
    if out is not None:
        from benchmarks.memory_bound import provenance

        out.write_text(json.dumps({**provenance("llm"), "steps": STEPS, "rows": rows}, indent=1))
    heads = ["", "dims", "largest error", *(f"{b} x {t}, us" for b, t in STEPS)]
    lines = [
        [row["who"], str(row["dims"]), f"{max(row['errors']):.1e}"]
        + [f"{us:.0f}" for us in row.get("us", [])] + [""] * (3 if "us" not in row else 0)
        for row in rows
    ]  # fmt: skip
    print(columns(heads, lines), flush=True)


if __name__ == "__main__":
    typer.run(main)
