"""Models of Relax for ``benchmarks/models.py``, each beside the same model of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.relax.frontend import nn

__all__ = [
    "MODELS",
    "Model",
    "PackedLinear",
    "block",
    "bottleneck",
    "convolution",
    "encoder",
    "head",
    "inverted",
    "llama",
    "mlp",
    "unet",
]


@dataclass(frozen=True)
class Model:
    """A function ``main`` of a Relax module, and the same in torch.

    ``inputs`` gives shape and type of each argument, parameters included, in the order of both;
    ``torch`` takes torch itself and these.
    """

    module: tvm.IRModule
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    torch: Callable[..., Any]
    #: What torch is given instead, where it has no such type; takes torch and the inputs.
    unpacked: Callable[..., Any] | None = None


class PackedLinear(nn.Module):  # type: ignore[misc]
    """A layer whose weights have 4 or 8 bits, as MLC's group quantisation packs them.

    Weights that are neighbours in a row share an unsigned integer, the first in its low bits, and
    ``group`` of them a scale; from each half of its range is taken.
    """

    def __init__(
        self,
        inside: int,
        out: int,
        bits: int = 4,
        group: int = 32,
        storage: str = "uint32",
        dtype: str = "float16",
    ) -> None:
        self.shape, self.bits, self.group, self.dtype = (out, inside), bits, group, dtype
        self.each = int(storage.removeprefix("uint")) // bits
        self.packed = nn.Parameter((out, inside // self.each), storage)
        self.scale = nn.Parameter((out, inside // group), dtype)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Multiply by what is unpacked."""
        weight = nn.op.tensor_expr_op(self.unpacked, "dequantize", [self.packed, self.scale])
        return nn.op.matmul(x, nn.op.permute_dims(weight))

    def unpacked(self, packed: te.Tensor, scale: te.Tensor) -> te.Tensor:
        """The weights in TVM."""
        half = tirx.const((1 << self.bits - 1) - 1, self.dtype)
        mask = tirx.const((1 << self.bits) - 1, packed.dtype)

        def one(n: Any, k: Any) -> Any:
            shift = tirx.Cast(packed.dtype, k % self.each * self.bits)
            found = packed[n, k // self.each] >> shift & mask
            return (tirx.Cast(self.dtype, found) - half) * scale[n, k // self.group]

        return te.compute(self.shape, one, name="dequantize")


def _unpacked(torch: Any, packed: Any, scale: Any, group: int = 32) -> Any:
    """Weights of 4 bits in torch, as :class:`PackedLinear` has them."""
    shifts = torch.arange(0, 32, 4, device=packed.device)
    found = packed.view(torch.int32)[..., None] >> shifts & 15
    weight = (found.flatten(1) - 7).to(scale.dtype)
    return weight * scale.repeat_interleave(group, 1)


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


class _Llama(nn.Module):  # type: ignore[misc]
    """A decoder layer: grouped queries over a cache, rotated by position, and a gated MLP."""

    def __init__(
        self, dims: int, heads: int, groups: int, wide: int, dtype: str, is_packed: bool
    ) -> None:
        def linear(inside: int, out: int) -> nn.Module:
            if is_packed:
                return PackedLinear(inside, out, dtype=dtype)
            return nn.Linear(inside, out, bias=False, dtype=dtype)

        self.heads, self.groups, self.size = heads, groups, dims // heads
        self.norm1 = nn.RMSNorm(dims, axes=-1, epsilon=1e-5, bias=False, dtype=dtype)
        self.norm2 = nn.RMSNorm(dims, axes=-1, epsilon=1e-5, bias=False, dtype=dtype)
        self.qkv = linear(dims, (heads + 2 * groups) * self.size)
        self.out = linear(dims, dims)
        self.gate = linear(dims, 2 * wide)
        self.down = linear(wide, dims)

    def forward(self, x: nn.Tensor, turns: nn.Tensor, keys: Any, values: Any) -> nn.Tensor:
        b, t, d = x.shape
        op, h, g, size = nn.op, self.heads, self.groups, self.size
        qkv = op.reshape(self.qkv(self.norm1(x)), (b, t, h + 2 * g, size))
        q, k, v = op.split(qkv, [h, h + g], axis=2)
        q, k = self.turned(q, turns), self.turned(k, turns)
        q, k, v = (op.permute_dims(one, (0, 2, 1, 3)) for one in (q, k, v))
        if t == 1:
            k, v = op.concat([keys, k], dim=2), op.concat([values, v], dim=2)
        k, v = (op.repeat(one, h // g, axis=1) for one in (k, v))
        scores = op.matmul(q, op.permute_dims(k, (0, 1, 3, 2))) * size**-0.5
        if t != 1:
            scores = scores + op.triu(op.full((t, t), -60000.0, x.dtype), diagonal=1)
        mixed = op.matmul(op.softmax(scores, axis=-1), v)
        x = x + self.out(op.reshape(op.permute_dims(mixed, (0, 2, 1, 3)), (b, t, d)))
        gate, up = op.split(self.gate(self.norm2(x)), 2, axis=-1)
        return x + self.down(op.silu(gate) * up)

    def turned(self, x: nn.Tensor, turns: nn.Tensor) -> nn.Tensor:
        """Rotate halves of each head; ``turns`` has cosines and sines by position."""
        cosine, sine = nn.op.split(turns, 2, axis=0)
        first, second = nn.op.split(x, 2, axis=-1)
        parts = [first * cosine - second * sine, second * cosine + first * sine]
        return nn.op.concat(parts, dim=-1)


class _Encoder(nn.Module):  # type: ignore[misc]
    """An encoder layer with biases; norms are before its parts, as ViT has them, or behind."""

    def __init__(self, dims: int, heads: int, before: bool, dtype: str) -> None:
        self.heads, self.before = heads, before
        self.norm1 = nn.LayerNorm(dims, dtype=dtype)
        self.norm2 = nn.LayerNorm(dims, dtype=dtype)
        self.qkv = nn.Linear(dims, 3 * dims, dtype=dtype)
        self.out = nn.Linear(dims, dims, dtype=dtype)
        self.up = nn.Linear(dims, 4 * dims, dtype=dtype)
        self.down = nn.Linear(4 * dims, dims, dtype=dtype)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        if self.before:
            x = x + self.mixed(self.norm1(x))
            return x + self.down(nn.op.gelu(self.up(self.norm2(x))))
        x = self.norm1(x + self.mixed(x))
        return self.norm2(x + self.down(nn.op.gelu(self.up(x))))

    def mixed(self, x: nn.Tensor) -> nn.Tensor:
        """Attention."""
        b, t, d = x.shape
        size = d // self.heads
        qkv = nn.op.reshape(self.qkv(x), (b, t, 3 * self.heads, size))
        parts = nn.op.split(nn.op.permute_dims(qkv, (0, 2, 1, 3)), 3, axis=1)
        scores = nn.op.matmul(parts[0], nn.op.permute_dims(parts[1], (0, 1, 3, 2))) * size**-0.5
        mixed = nn.op.matmul(nn.op.softmax(scores, axis=-1), parts[2])
        return self.out(nn.op.reshape(nn.op.permute_dims(mixed, (0, 2, 1, 3)), (b, t, d)))


class _Inverted(nn.Module):  # type: ignore[misc]
    """Two blocks of a MobileNetV2 with their norms folded, the second of half the resolution."""

    def __init__(self, channels: int, out: int, dtype: str) -> None:
        def conv(inside: int, out: int, size: int = 1, stride: int = 1, each: int = 1) -> nn.Conv2D:
            return nn.Conv2D(inside, out, size, stride, size // 2, groups=each, dtype=dtype)

        wide = 6 * channels
        self.one, self.two = conv(channels, wide), conv(wide, wide, 3, 1, wide)
        self.three, self.four = conv(wide, channels), conv(channels, wide)
        self.five, self.six = conv(wide, wide, 3, 2, wide), conv(wide, out)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        cut = nn.op.relu6
        x = self.three(cut(self.two(cut(self.one(x))))) + x
        return self.six(cut(self.five(cut(self.four(x)))))


class _Up(nn.Module):  # type: ignore[misc]
    """A residual block of a U-Net with group norms, then twice the resolution."""

    def __init__(self, channels: int, groups: int, dtype: str) -> None:
        def conv() -> nn.Conv2D:
            return nn.Conv2D(channels, channels, 3, padding=1, dtype=dtype)

        self.norm1 = nn.GroupNorm(groups, channels, dtype=dtype)
        self.one = conv()
        self.norm2 = nn.GroupNorm(groups, channels, dtype=dtype)
        self.two, self.three = conv(), conv()

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        silu = nn.op.silu
        x = self.two(silu(self.norm2(self.one(silu(self.norm1(x)))))) + x
        # The frontend's own rounds places up where torch's takes the pixel before.
        twice = relax.op.image.resize2d(
            x._expr,
            [2 * extent for extent in x.shape[2:]],
            layout="NCHW",
            method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        )
        return self.three(nn.wrap_nested(twice, "twice"))


class _Bottleneck(nn.Module):  # type: ignore[misc]
    """Two blocks of a ResNet-50 with their norms folded, the second of half the resolution."""

    def __init__(self, channels: int, dtype: str) -> None:
        def conv(inside: int, out: int, size: int, stride: int = 1) -> nn.Conv2D:
            return nn.Conv2D(inside, out, size, stride, size // 2, dtype=dtype)

        wide, narrow = 4 * channels, 2 * channels
        self.one = conv(wide, channels, 1)
        self.two = conv(channels, channels, 3)
        self.three = conv(channels, wide, 1)
        self.four = conv(wide, narrow, 1)
        self.five = conv(narrow, narrow, 3, 2)
        self.six = conv(narrow, 2 * wide, 1)
        self.aside = conv(wide, 2 * wide, 1, 2)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        relu = nn.op.relu
        x = relu(self.three(relu(self.two(relu(self.one(x))))) + x)
        return relu(self.six(relu(self.five(relu(self.four(x))))) + self.aside(x))


def _exported(
    module: nn.Module,
    shape: Sequence[Any],
    dtype: str,
    torch: Callable[..., Any],
    name: str = "x",
    beside: Sequence[tuple[str, tuple[Any, ...]]] = (),
) -> Model:
    given = [(name, tuple(shape), dtype), *((one, extents, dtype) for one, extents in beside)]
    spec = {"forward": {one: nn.spec.Tensor(extents, kind) for one, extents, kind in given}}
    mod, parameters = module.export_tvm(spec=spec)
    others = {gv: func for gv, func in mod.functions.items() if gv.name_hint != "forward"}
    main = mod["forward"].with_attr("global_symbol", "main")
    shapes = [(tuple(p.shape), str(p.dtype)) for _, p in parameters]
    inputs = (*((extents, kind) for _, extents, kind in given), *shapes)
    return Model(tvm.IRModule({tvm.ir.GlobalVar("main"): main, **others}), inputs, torch)


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

    return _exported(_Head(words, dims, dtype), (tokens,), "int32", run, "tokens")


def convolution(batch: int, channels: int, size: int, dtype: str = "float16") -> Model:
    """Two 3x3 convolutions with a residual."""

    def run(torch: Any, x: Any, *p: Any) -> Any:
        f = torch.nn.functional
        return f.relu(f.conv2d(f.relu(f.conv2d(x, *p[:2], padding=1)), *p[2:], padding=1) + x)

    return _exported(_Convolution(channels, dtype), (batch, channels, size, size), dtype, run)


def llama(
    batch: Any,
    tokens: Any,
    past: Any = 0,
    dims: int = 4096,
    heads: int = 32,
    groups: int = 8,
    wide: int = 14336,
    dtype: str = "float16",
    is_packed: bool = False,
) -> Model:
    """A decoder layer, of a whole prompt or, where ``tokens`` is 1, of one token after others.

    Packed weights have 4 bits; torch is given them in ``dtype``.
    """
    size = dims // heads

    def turned(torch: Any, x: Any, turns: Any) -> Any:
        first, second = x.chunk(2, -1)
        return torch.cat(
            [first * turns[0] - second * turns[1], second * turns[0] + first * turns[1]], -1
        )

    def run(torch: Any, x: Any, turns: Any, keys: Any, values: Any, *p: Any) -> Any:
        f = torch.nn.functional
        b, t, d = x.shape
        n1, n2, qkv, out, gate, down = p
        parts = f.linear(f.rms_norm(x, (d,), n1, 1e-5), qkv).reshape(b, t, -1, size)
        q, k, v = parts.split([heads, groups, groups], 2)
        q, k = turned(torch, q, turns), turned(torch, k, turns)
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        if t == 1:
            k, v = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        k, v = (one.repeat_interleave(heads // groups, 1) for one in (k, v))
        mixed = f.scaled_dot_product_attention(q, k, v, is_causal=t != 1)
        x = x + f.linear(mixed.transpose(1, 2).reshape(b, t, d), out)
        first, second = f.linear(f.rms_norm(x, (d,), n2, 1e-5), gate).chunk(2, -1)
        return x + f.linear(f.silu(first) * second, down)

    def unpacked(torch: Any, *given: Any) -> Any:
        *first, n1, n2 = given[:6]
        weights = (_unpacked(torch, *given[at : at + 2]) for at in range(6, len(given), 2))
        return *first, n1, n2, *weights

    module = _Llama(dims, heads, groups, wide, dtype, is_packed)
    cache = (batch, groups, past if tokens == 1 else 1, size)
    others = [("turns", (2, tokens, 1, size // 2)), ("keys", cache), ("values", cache)]
    model = _exported(module, (batch, tokens, dims), dtype, run, beside=others)
    return replace(model, unpacked=unpacked) if is_packed else model


def encoder(
    batch: int, tokens: int, dims: int, heads: int, before: bool, dtype: str = "float16"
) -> Model:
    """An encoder layer."""

    def run(torch: Any, x: Any, *p: Any) -> Any:
        f = torch.nn.functional
        b, t, d = x.shape

        def norm(value: Any, at: int) -> Any:
            return f.layer_norm(value, (d,), *p[at : at + 2])

        def mixed(value: Any) -> Any:
            parts = f.linear(value, *p[4:6]).reshape(b, t, 3, heads, d // heads)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            found = f.scaled_dot_product_attention(q, k, v)
            return f.linear(found.transpose(1, 2).reshape(b, t, d), *p[6:8])

        def fed(value: Any) -> Any:
            return f.linear(f.gelu(f.linear(value, *p[8:10])), *p[10:12])

        if before:
            x = x + mixed(norm(x, 0))
            return x + fed(norm(x, 2))
        x = norm(x + mixed(x), 0)
        return norm(x + fed(x), 2)

    return _exported(_Encoder(dims, heads, before, dtype), (batch, tokens, dims), dtype, run)


def bottleneck(batch: int, channels: int, size: int, dtype: str = "float16") -> Model:
    """Two blocks of a ResNet-50."""

    def run(torch: Any, x: Any, *p: Any) -> Any:
        f = torch.nn.functional

        def conv(value: Any, at: int, stride: int = 1) -> Any:
            weight, bias = p[2 * at : 2 * at + 2]
            return f.conv2d(value, weight, bias, stride, weight.shape[-1] // 2)

        y = f.relu(conv(f.relu(conv(x, 0)), 1))
        x = f.relu(conv(y, 2) + x)
        y = f.relu(conv(f.relu(conv(x, 3)), 4, 2))
        return f.relu(conv(y, 5) + conv(x, 6, 2))

    module = _Bottleneck(channels, dtype)
    return _exported(module, (batch, 4 * channels, size, size), dtype, run)


def inverted(batch: int, channels: int, out: int, size: int, dtype: str = "float16") -> Model:
    """Two blocks of a MobileNetV2."""

    def run(torch: Any, x: Any, *p: Any) -> Any:
        f = torch.nn.functional

        def conv(value: Any, at: int, stride: int = 1) -> Any:
            weight, bias = p[2 * at : 2 * at + 2]
            each = value.shape[1] // weight.shape[1]
            return f.conv2d(value, weight, bias, stride, weight.shape[-1] // 2, 1, each)

        x = conv(f.relu6(conv(f.relu6(conv(x, 0)), 1)), 2) + x
        return conv(f.relu6(conv(f.relu6(conv(x, 3)), 4, 2)), 5)

    return _exported(_Inverted(channels, out, dtype), (batch, channels, size, size), dtype, run)


def unet(batch: int, channels: int, groups: int, size: int, dtype: str = "float16") -> Model:
    """A residual block of a U-Net, and a convolution of twice the resolution."""

    def run(torch: Any, x: Any, *p: Any) -> Any:
        f = torch.nn.functional

        def part(value: Any, at: int) -> Any:
            found = f.silu(f.group_norm(value, groups, *p[at : at + 2]))
            return f.conv2d(found, *p[at + 2 : at + 4], padding=1)

        x = part(part(x, 0), 4) + x
        return f.conv2d(f.interpolate(x, scale_factor=2.0), *p[8:], padding=1)

    return _exported(_Up(channels, groups, dtype), (batch, channels, size, size), dtype, run)


#: By the name in the table.
MODELS: dict[str, Callable[[], Model]] = {
    "block 1024, 128 tokens": partial(block, 128, 1024, 16),
    "block 1024, 1024 tokens": partial(block, 1024, 1024, 16),
    "block 4096, 4 tokens": partial(block, 4, 4096, 32),
    "mlp f32, 512x784, 4096 wide": partial(mlp, 512, 784, 4096, 784),
    "head 2048x32000, 64 tokens": partial(head, 64, 32000, 2048),
    "conv 64, 32x56x56": partial(convolution, 32, 64, 56),
    "ResNet-50 blocks, 64x256x56x56": partial(bottleneck, 64, 64, 56),
    "ViT-B/16 layer, 32x197": partial(encoder, 32, 197, 768, 12, True),
    "BERT-base layer, 8x384": partial(encoder, 8, 384, 768, 12, False),
    "LLaMA layer, prompt of 2048": partial(llama, 1, 2048),
    "LLaMA layer, 1 token after 2047": partial(llama, 1, 1, 2047),
    "LLaMA layer, 16 tokens after 2047": partial(llama, 16, 1, 2047),
    "int4 LLaMA layer, 1 token after 2047": partial(llama, 1, 1, 2047, is_packed=True),
    "int4 LLaMA layer, 4 tokens after 2047": partial(llama, 4, 1, 2047, is_packed=True),
    "int4 LLaMA layer, 16 tokens after 2047": partial(llama, 16, 1, 2047, is_packed=True),
    "int4 LLaMA layer, prompt of 2048": partial(llama, 1, 2048, is_packed=True),
    "MobileNetV2 blocks, 64x24x56x56": partial(inverted, 64, 24, 32, 56),
    "U-Net stage, 4x320x64x64": partial(unet, 4, 320, 32, 64),
}
