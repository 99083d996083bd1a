"""A decoder of LLaMA's kind with TVM's paged cache: a prompt, then tokens of a whole batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, te
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache, RopeMode, TIRPagedKVCache
from tvm.target import Target

op = nn.op


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
