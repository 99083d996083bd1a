"""A decoder of LLaMA's kind with TVM's paged cache: prompts, then tokens of a whole batch.

``python -m benchmarks.llm --out FILE`` needs a CUDA GPU and torch: it compiles the module by
``tlx.relax_pipeline`` and by TVM's own pipeline for CUDA, compares the logits of both with those of
NumPy in float32, and sums up their kernels' times. The longest kernels of each step are told.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
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
#: Kernels of a step that are told, and letters of their names.
TOLD, LETTERS = 5, 44
_EPSILON, _THETA = 1e-5, 10000


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
        self.norm1 = nn.RMSNorm(dims, -1, _EPSILON, bias=False)
        self.norm2 = nn.RMSNorm(dims, -1, _EPSILON, bias=False)
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
        self.norm = nn.RMSNorm(sizes.dims, -1, _EPSILON, bias=False)
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
            rope_theta=_THETA,
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
        self, executable: Any, device: Any, parameters: Sequence[np.ndarray], total: int = 1 << 15
    ) -> None:
        self.device = device
        self.main = relax.VirtualMachine(executable, device)
        self.parameters = [tvm.runtime.tensor(one, device) for one in parameters]
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


def parameters(kinds: Sequence[tuple[tuple[int, ...], str]]) -> list[np.ndarray]:
    """Values of 16 bits by which no layer overflows."""
    rng = np.random.default_rng(0)

    def values(shape: tuple[int, ...]) -> np.ndarray:
        scale = 1 if len(shape) == 1 else shape[-1] ** -0.5
        return rng.standard_normal(shape, np.float32) * np.float32(scale)

    return [values(shape).astype("float16").astype(dtype) for shape, dtype in kinds]


class Exact:
    """The decoder by NumPy in float32, without a cache: all tokens of a sequence every time."""

    def __init__(self, sizes: Sizes, parameters: Sequence[np.ndarray]) -> None:
        self.sizes, self.tokens = sizes, dict[int, list[int]]()
        self.words, *self.layers, self.norm, self.head = (
            one.astype("float32") for one in parameters
        )

    def add(self, *sequences: int) -> None:
        """Begin sequences."""
        self.tokens |= {one: [] for one in sequences}

    def remove(self, *sequences: int) -> None:
        """Forget sequences."""
        for one in sequences:
            del self.tokens[one]

    def step(self, tokens: np.ndarray, *sequences: int) -> np.ndarray:
        """Logits behind tokens of some sequences."""
        found = []
        for one, more in zip(sequences, tokens, strict=True):
            self.tokens[one] += more.tolist()
            found.append(self._logits(self.tokens[one]))
        return np.stack(found)[:, None]

    def _logits(self, tokens: list[int]) -> np.ndarray:
        x = self.words[tokens]
        for at in range(0, len(self.layers), 6):
            norm1, norm2, qkv, out, gate, down = self.layers[at : at + 6]
            x = x + self._mixed(_normed(x, norm1) @ qkv.T) @ out.T
            first, second = np.split(_normed(x, norm2) @ gate.T, 2, -1)
            x = x + (first / (1 + np.exp(-first)) * second) @ down.T
        return np.asarray(_normed(x[-1], self.norm) @ self.head.T)

    def _mixed(self, qkv: np.ndarray) -> np.ndarray:
        """Causal attention, heads of queries sharing those of keys and values."""
        sizes, length = self.sizes, len(qkv)
        heads = qkv.reshape(length, -1, sizes.head).swapaxes(0, 1)
        q, k, v = np.split(heads, [sizes.heads, sizes.heads + sizes.groups])
        k, v = (np.repeat(one, sizes.heads // sizes.groups, 0) for one in (k, v))
        scores = _turned(q) @ _turned(k).swapaxes(1, 2) * np.float32(sizes.head**-0.5)
        scores[:, ~np.tri(length, dtype=bool)] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = shares / shares.sum(-1, keepdims=True) @ v
        return mixed.swapaxes(0, 1).reshape(length, -1)


def _normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + _EPSILON) * weight)


def _turned(x: np.ndarray) -> np.ndarray:
    """Heads x tokens x elements, each token's turned by its position."""
    _, length, head = x.shape
    angles = np.arange(length)[:, None] * float(_THETA) ** -(np.arange(head) * 2 % head / head)
    first, second = np.split(x, 2, -1)
    turned = np.concatenate([-second, first], -1)
    return np.asarray(x * np.cos(angles) + turned * np.sin(angles), "float32")


def conversation(session: Session | Exact, words: int) -> list[np.ndarray]:
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


def _times(session: Session, words: int, batch: int, count: int) -> dict[str, float]:
    """Microseconds of a step's kernels, longest first: of prompts, or of a token after 1024."""
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
    times = {name: float(np.median(one)) for name, one in runs.items() if "Mem" not in name}
    return dict(sorted(times.items(), key=lambda one: -one[1]))


def _built(who: str, sizes: Sizes) -> bytes:
    target = tlx.default_target()
    pipeline = tlx.relax_pipeline(target) if who == "ours" else None
    compiled(sizes, target, pipeline).export_library(path := f"/tmp/llm_{who}_{sizes.dims}.so")
    return path.encode()


def _measured(who: str, sizes: Sizes, library: bytes, is_timed: bool) -> dict[str, Any]:
    """Errors of a compiled model, and times of its kernels by step."""
    values = parameters(decoder(sizes, Target("llvm"))[1])
    session = Session(tvm.runtime.load_module(library.decode()), tvm.cuda(0), values)
    want = conversation(Exact(sizes, values), sizes.words)
    pairs = zip(conversation(session, sizes.words), want, strict=True)
    errors = [float(np.abs(one - other).max() / np.abs(other).max()) for one, other in pairs]
    kernels = [_times(session, sizes.words, *step) for step in STEPS] if is_timed else []
    return {"who": who, "dims": sizes.dims, "errors": errors, "kernels": kernels}


def _told(rows: list[dict[str, Any]]) -> str:
    """Errors and sums of each, and the longest kernels of each step."""
    heads = ["", "dims", "largest error", *(f"{b} x {t}, us" for b, t in STEPS)]
    lines = [
        [row["who"], str(row["dims"]), f"{max(row['errors']):.1e}"]
        + ([f"{sum(step.values()):.0f}" for step in row["kernels"]] or [""] * len(STEPS))
        for row in rows
    ]
    tables = [columns(heads, lines)]
    for at, (batch, count) in enumerate(STEPS):
        lines = [
            [row["who"], name[:LETTERS], f"{us:.0f}"]
            for row in rows
            if row["kernels"]
            for name, us in list(row["kernels"][at].items())[:TOLD]
        ]
        tables.append(columns([f"{batch} x {count}", "kernel", "us"], lines))
    return "\n\n".join(tables)


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
    rows = [
        _measured(who, sizes, path, sizes is large)
        for path, (who, sizes) in zip(paths, cases, strict=True)
    ]
    if out is not None:
        from benchmarks.memory_bound import provenance

        out.write_text(json.dumps({**provenance("llm"), "steps": STEPS, "rows": rows}, indent=1))
    print(_told(rows), flush=True)


if __name__ == "__main__":
    typer.run(main)
