"""Models of every kind, tiny."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm.relax.frontend import nn

from benchmarks.model_zoo import bottleneck, encoder, inverted, unet

op, HALF = nn.op, "float16"


class _Gpt2(nn.Module):  # type: ignore[misc]
    """Embeddings of words and places, a layer with a causal mask, and a head that shares words."""

    def __init__(self, words: int, places: int, dims: int, heads: int) -> None:
        self.heads = heads
        self.words, self.places = nn.Embedding(words, dims), nn.Embedding(places, dims)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(dims) for _ in range(3))
        self.qkv, self.out = nn.Linear(dims, 3 * dims), nn.Linear(dims, dims)
        self.up, self.down = nn.Linear(dims, 4 * dims), nn.Linear(4 * dims, dims)

    def forward(self, tokens: nn.Tensor) -> nn.Tensor:
        t = tokens.shape[0]
        x = self.words(tokens) + self.places(op.arange(0, t, dtype="int32"))
        d = x.shape[-1]
        qkv = op.reshape(self.qkv(self.norm1(x)), (t, 3, self.heads, d // self.heads))
        q, k, v = (
            op.squeeze(p, 0) for p in op.split(op.permute_dims(qkv, (1, 2, 0, 3)), 3, axis=0)
        )
        scores = op.matmul(q, op.permute_dims(k, (0, 2, 1))) * (d // self.heads) ** -0.5
        scores = scores + op.triu(op.full((t, t), -1e4, x.dtype), diagonal=1)
        mixed = op.permute_dims(op.matmul(op.softmax(scores), v), (1, 0, 2))
        x = x + self.out(op.reshape(mixed, (t, d)))
        x = x + self.down(op.gelu(self.up(self.norm2(x))))
        return op.matmul(self.norm3(x), op.permute_dims(self.words.weight))


class _Lstm(nn.Module):  # type: ignore[misc]
    """One step of a cell."""

    def __init__(self, dims: int, wide: int) -> None:
        self.gates = nn.Linear(dims + wide, 4 * wide)

    def forward(self, x: nn.Tensor, cell: nn.Tensor, hidden: nn.Tensor) -> nn.Tensor:
        parts = op.split(self.gates(op.concat([x, hidden], dim=1)), 4, axis=1)
        reads, forgets, writes = (op.sigmoid(part) for part in parts[:3])
        return writes * op.tanh(forgets * cell + reads * op.tanh(parts[3]))


class _Timesteps(nn.Module):  # type: ignore[misc]
    """Sines and cosines of a time through two layers, as diffusion models have them."""

    def __init__(self, dims: int) -> None:
        self.dims = dims
        self.one, self.two = nn.Linear(dims, 4 * dims), nn.Linear(4 * dims, dims)

    def forward(self, times: nn.Tensor) -> nn.Tensor:
        found = op.get_timestep_embedding(times, self.dims, True, 0.0).astype(HALF)
        return self.two(op.silu(self.one(found)))


def exported(module: nn.Module, **inputs: tuple[tuple[int, ...], str]) -> tvm.IRModule:
    spec = {name: nn.spec.Tensor(list(shape), dtype) for name, (shape, dtype) in inputs.items()}
    module.to("float16")
    return module.export_tvm(spec={"forward": spec})[0]


def layer(module: nn.Module, *shape: int) -> tvm.IRModule:
    """A layer of the frontend alone."""
    return exported(module, x=(shape, "float16"))


MODELS: dict[str, Callable[[], tvm.IRModule]] = {
    "GPT-2": lambda: exported(_Gpt2(40, 16, 32, 2), tokens=((9,), "int32")),
    "BERT": lambda: encoder(1, 9, 32, 2, False).module,
    "ViT": lambda: encoder(2, 5, 32, 2, True).module,
    "LSTM": lambda: exported(
        _Lstm(8, 16), x=((3, 8), HALF), cell=((3, 16), HALF), hidden=((3, 16), HALF)
    ),
    "ResNet": lambda: bottleneck(1, 8, 4).module,
    "MobileNetV2": lambda: inverted(1, 8, 16, 6).module,
    "U-Net": lambda: unet(1, 16, 2, 4).module,
    "timesteps": lambda: exported(_Timesteps(16), times=((2,), HALF)),
    "conv1d": lambda: layer(nn.Conv1D(8, 16, 3, padding=1), 1, 8, 9),
    "conv1d transposed": lambda: layer(nn.ConvTranspose1D(8, 16, 3), 1, 8, 5),
    "conv3d": lambda: layer(nn.Conv3D(8, 8, 3), 1, 8, 4, 4, 5),
    "group norm": lambda: layer(nn.GroupNorm(2, 8), 2, 8, 3, 5),
    "rms norm": lambda: layer(nn.RMSNorm(24, axes=-1), 3, 24),
}
