"""Models of Relax for ``benchmarks/models.py``, each beside the same model of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
from tvm.relax.frontend import nn

__all__ = ["MODELS", "Model", "block", "convolution", "head", "mlp"]


@dataclass(frozen=True)
class Model:
    """A function ``main`` of a Relax module, and the same in torch.

    ``inputs`` gives shape and type of each argument, parameters included, in the order of both;
    ``torch`` takes torch itself and these.
    """

    module: tvm.IRModule
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    torch: Callable[..., Any]


class _Block(nn.Module):  # type: ignore[misc]
    """RMSNorm, attention by one QKV product, RMSNorm, MLP; residuals around both."""

    def __init__(self, dims: int, heads: int, dtype: str) -> None:
        self.heads, self.dims = heads, dims
        self.norm1 = nn.RMSNorm(dims, axes=-1, epsilon=1e-5, bias=False, dtype=dtype)
        self.norm2 = nn.RMSNorm(dims, axes=-1, epsilon=1e-5, bias=False, dtype=dtype)
        self.qkv = nn.Linear(dims, 3 * dims, bias=False, dtype=dtype)
        self.out = nn.Linear(dims, dims, bias=False, dtype=dtype)
        self.up = nn.Linear(dims, 4 * dims, dtype=dtype)
        self.down = nn.Linear(4 * dims, dims, dtype=dtype)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        b, tokens, _ = x.shape
        size = self.dims // self.heads
        qkv = nn.op.reshape(self.qkv(self.norm1(x)), (b, tokens, 3, self.heads, size))
        parts = nn.op.split(nn.op.permute_dims(qkv, (2, 0, 3, 1, 4)), 3, axis=0)
        q, k, v = (nn.op.reshape(p, (b, self.heads, tokens, size)) for p in parts)
        scores = nn.op.matmul(q, nn.op.permute_dims(k, (0, 1, 3, 2))) * size**-0.5
        mixed = nn.op.matmul(nn.op.softmax(scores, axis=-1), v)
        x = x + self.out(
            nn.op.reshape(nn.op.permute_dims(mixed, (0, 2, 1, 3)), (b, tokens, self.dims))
        )
        return x + self.down(nn.op.gelu(self.up(self.norm2(x))))


class _Mlp(nn.Module):  # type: ignore[misc]
    """Two products with biases, a ReLU between them."""

    def __init__(self, dims: int, wide: int, out: int, dtype: str) -> None:
        self.up = nn.Linear(dims, wide, dtype=dtype)
        self.down = nn.Linear(wide, out, dtype=dtype)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.down(nn.op.relu(self.up(x)))


class _Head(nn.Module):  # type: ignore[misc]
    """Embedding, RMSNorm, vocabulary head, softmax."""

    def __init__(self, words: int, dims: int, dtype: str) -> None:
        self.embed = nn.Embedding(words, dims, dtype=dtype)
        self.norm = nn.RMSNorm(dims, axes=-1, epsilon=1e-5, bias=False, dtype=dtype)
        self.head = nn.Linear(dims, words, bias=False, dtype=dtype)

    def forward(self, tokens: nn.Tensor) -> nn.Tensor:
        return nn.op.softmax(self.head(self.norm(self.embed(tokens))), axis=-1)


class _Convolution(nn.Module):  # type: ignore[misc]
    """Two 3x3 convolutions with biases and a residual, as a stage of a ResNet has them."""

    def __init__(self, channels: int, dtype: str) -> None:
        self.one = nn.Conv2D(channels, channels, 3, padding=1, dtype=dtype)
        self.two = nn.Conv2D(channels, channels, 3, padding=1, dtype=dtype)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return nn.op.relu(self.two(nn.op.relu(self.one(x))) + x)


def _exported(
    module: nn.Module, shape: Sequence[Any], dtype: str, torch: Callable[..., Any]
) -> Model:
    spec = {"forward": {"x": nn.spec.Tensor(shape, dtype)}}
    if isinstance(module, _Head):
        spec = {"forward": {"tokens": nn.spec.Tensor(shape, dtype)}}
    mod, parameters = module.export_tvm(spec=spec)
    named = {gv.name_hint: func for gv, func in mod.functions.items()}
    main = named.pop("forward").with_attr("global_symbol", "main")
    shapes = [(tuple(p.shape), str(p.dtype)) for _, p in parameters]
    inputs = ((tuple(shape), dtype), *shapes)
    return Model(tvm.IRModule({"main": main, **named}), inputs, torch)


def block(tokens: Any, dims: int, heads: int, dtype: str = "float16") -> Model:
    """A transformer block."""

    def run(torch: Any, x: Any, n1: Any, n2: Any, qkv: Any, out: Any, *mlp: Any) -> Any:
        f = torch.nn.functional
        b, t, d = x.shape
        parts = f.linear(f.rms_norm(x, (d,), n1, 1e-5), qkv)
        q, k, v = parts.reshape(b, t, 3, heads, d // heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (d // heads) ** -0.5
        mixed = torch.softmax(scores, -1) @ v
        x = x + f.linear(mixed.permute(0, 2, 1, 3).reshape(b, t, d), out)
        up = f.gelu(f.linear(f.rms_norm(x, (d,), n2, 1e-5), *mlp[:2]))
        return x + f.linear(up, *mlp[2:])

    return _exported(_Block(dims, heads, dtype), (1, tokens, dims), dtype, run)


def mlp(rows: Any, dims: int, wide: int, out: int, dtype: str = "float32") -> Model:
    """Two products with biases."""

    def run(torch: Any, x: Any, *p: Any) -> Any:
        f = torch.nn.functional
        return f.linear(f.relu(f.linear(x, *p[:2])), *p[2:])

    return _exported(_Mlp(dims, wide, out, dtype), (rows, dims), dtype, run)


def head(tokens: Any, words: int, dims: int, dtype: str = "float16") -> Model:
    """Embedding, norm, vocabulary head and softmax."""

    def run(torch: Any, x: Any, embed: Any, norm: Any, weight: Any) -> Any:
        f = torch.nn.functional
        found = f.rms_norm(f.embedding(x, embed), (dims,), norm, 1e-5)
        return torch.softmax(f.linear(found, weight), -1)

    return _exported(_Head(words, dims, dtype), (tokens,), "int32", run)


def convolution(batch: int, channels: int, size: int, dtype: str = "float16") -> Model:
    """Two 3x3 convolutions with a residual."""

    def run(torch: Any, x: Any, *p: Any) -> Any:
        f = torch.nn.functional
        return f.relu(f.conv2d(f.relu(f.conv2d(x, *p[:2], padding=1)), *p[2:], padding=1) + x)

    return _exported(_Convolution(channels, dtype), (batch, channels, size, size), dtype, run)


#: By the name in the table.
MODELS: dict[str, Callable[[], Model]] = {
    "block 1024, 128 tokens": partial(block, 128, 1024, 16),
    "block 1024, 1024 tokens": partial(block, 1024, 1024, 16),
    "block 4096, 4 tokens": partial(block, 4, 4096, 32),
    "mlp f32, 512x784, 4096 wide": partial(mlp, 512, 784, 4096, 784),
    "head 2048x32000, 64 tokens": partial(head, 64, 32000, 2048),
    "conv 64, 32x56x56": partial(convolution, 32, 64, 56),
}
