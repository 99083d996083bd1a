"""Relax programs of the kinds that TVM's tests and tutorials compile for CUDA, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.relax.frontend import nn

from benchmarks.model_zoo import PackedLinear
from tests.programs.relaxed import relax_module

op, F32, HALF = relax.op, "float32", "float16"
N = tirx.Var("n", "int64")


def of(build: Callable[..., Any], *params: Any) -> Callable[[], tvm.IRModule]:
    """A program of parameters ``(shape, dtype)``, or shapes of ``float32``."""
    return lambda: relax_module(build, *params, dtype=F32)


def _typed(param: Any) -> tuple[Any, str]:
    return param if param and isinstance(param[0], tuple) else (param, F32)


def layer(make: Callable[[], nn.Module], *shapes: Any) -> Callable[[], tvm.IRModule]:
    """A layer of the frontend; shapes of ``float32``, or shape and type."""
    spec = {f"x{at}": nn.spec.Tensor(*_typed(one)) for at, one in enumerate(shapes)}

    def exported() -> tvm.IRModule:
        made = make() if len(shapes) > 1 else Chain(make())
        mod = made.export_tvm(spec={"forward": spec})[0]
        main = mod["forward"].with_attr("global_symbol", "main")
        rest = {gv: one for gv, one in mod.functions.items() if gv.name_hint != "forward"}
        return tvm.IRModule({tvm.ir.GlobalVar("main"): main, **rest})

    return exported


class Chain(nn.Module):  # type: ignore[misc]
    """Layers and functions, one after the other."""

    def __init__(self, *parts: Any) -> None:
        self.parts = nn.ModuleList([one for one in parts if isinstance(one, nn.Module)])
        self.order = parts

    def forward(self, x0: nn.Tensor) -> nn.Tensor:
        for part in self.order:
            x0 = part(x0)
        return x0


class _Residual(nn.Module):  # type: ignore[misc]
    """A ResNet-18's block with norms of fixed statistics written out."""

    def __init__(self, inside: int, out: int, stride: int) -> None:
        self.one = nn.Conv2D(inside, out, 3, stride, 1, bias=False)
        self.two = nn.Conv2D(out, out, 3, 1, 1, bias=False)
        self.aside = nn.Conv2D(inside, out, 1, stride, bias=False)
        self.scale, self.shift = nn.Parameter((1, out, 1, 1)), nn.Parameter((1, out, 1, 1))

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        y = nn.op.relu(self.one(x) * self.scale + self.shift)
        return nn.op.relu(self.two(y) * self.scale + self.shift + self.aside(x))


class _Cached(nn.Module):  # type: ignore[misc]
    """Scaled dot product attention of the frontend."""

    def forward(self, x0: nn.Tensor, x1: nn.Tensor, x2: nn.Tensor) -> nn.Tensor:
        return nn.op.scaled_dot_product_attention(x0, x1, x2, is_causal=True)


class _Expression(nn.Module):  # type: ignore[misc]
    """A tensor expression of one's own."""

    def forward(self, x0: nn.Tensor, x1: nn.Tensor) -> nn.Tensor:
        def outer(a: te.Tensor, b: te.Tensor) -> te.Tensor:
            k = te.reduce_axis((0, a.shape[1]), "k")
            return te.compute(
                (a.shape[0], b.shape[0]),
                lambda i, j: te.sum(te.abs(a[i, k] - b[j, k]), k),
                name="distances",
            )

        return nn.op.tensor_expr_op(outer, "distances", [x0, x1])


def _mean_pool(x: nn.Tensor) -> nn.Tensor:
    return nn.wrap_nested(op.mean(x._expr, axis=[2, 3]), "pooled")


def _flat(x: nn.Tensor) -> nn.Tensor:
    return nn.op.reshape(x, (x.shape[0], -1))


def _most(x: nn.Tensor) -> nn.Tensor:
    return nn.wrap_nested(op.nn.max_pool2d(x._expr, [2, 2], [2, 2]), "most")


def _attended(form: str) -> Callable[..., Any]:
    def build(q: Any, k: Any, v: Any, *bias: Any) -> Any:
        return op.nn.attention(q, k, v, *bias, causal_mask=form or None)

    return build


def _decoded(x: Any, packed: Any, scale: Any) -> Any:
    """A product by weights of 4 bits in bytes, rows of K, as TVM's tests of CUTLASS have it."""
    low = op.bitwise_and(packed, relax.const(15, "int8"))
    high = op.bitwise_and(op.right_shift(packed, relax.const(4, "int8")), relax.const(15, "int8"))
    both = op.reshape(op.stack([low, high], axis=2), (64, 32))
    wide = op.subtract(op.astype(both, HALF), relax.const(8, HALF))
    return op.matmul(x, op.multiply(wide, scale))


def _grid(a: Any, b: Any) -> Any:
    return op.meshgrid([a, b], "ij")


QKV = [((2, 40, 4, 64), HALF)] * 3
IMAGE = [1, 8, 9, 9]

MODELS: dict[str, Callable[[], tvm.IRModule]] = {
    "MLP of the first tutorial": layer(
        lambda: Chain(nn.Linear(784, 256), nn.op.relu, nn.Linear(256, 10, bias=False)), (1, 784)
    ),
    "MLP of any batch": layer(
        lambda: Chain(nn.Linear(784, 128), nn.op.relu, nn.Linear(128, 10)), ("n", 784)
    ),
    "classifier of images": layer(
        lambda: Chain(
            nn.Conv2D(3, 16, 3, padding=1), nn.op.relu, _most,
            nn.Conv2D(16, 32, 3, padding=1), nn.op.relu, _most, _flat, nn.Linear(512, 10),
        ),
        (1, 3, 16, 16),
    ),
    "ResNet-18, two stages": layer(
        lambda: Chain(
            nn.Conv2D(3, 16, 7, 2, 3), nn.op.relu, _most, _Residual(16, 16, 1),
            _Residual(16, 32, 2), _mean_pool, nn.Linear(32, 10),
        ),
        (2, 3, 24, 24),
    ),
    "TIR of one's own": layer(_Expression, (17, 24), (9, 24)),
    "scaled dot product": layer(_Cached, *[((1, 12, 4, 16), F32)] * 3),
    "attention": of(_attended(""), *QKV),
    "attention, causal": of(_attended("TopLeft"), *QKV),
    "attention, causal from below": of(_attended("BottomRight"), *QKV),
    "attention with a bias": of(_attended(""), *QKV, ((2, 4, 40, 40), HALF)),
    "attention in float32": of(_attended(""), *[((1, 18, 2, 16), F32)] * 3),
    "product and bias": of(
        lambda x, w, b: op.add(op.matmul(x, w), b),
        ((30, 64), HALF), ((64, 48), HALF), ((48,), HALF),
    ),
    "product and gelu": of(
        lambda x, w, b: op.nn.gelu(op.add(op.matmul(x, w), b)),
        ((30, 64), HALF), ((64, 48), HALF), ((48,), HALF),
    ),
    "product, residual": of(
        lambda x, w, r: op.add(op.nn.silu(op.matmul(x, op.permute_dims(w))), r),
        ((2, 30, 64), HALF), ((64, 64), HALF), ((2, 30, 64), HALF),
    ),
    "products of a batch": of(op.matmul, ((4, 16, 32), HALF), ((4, 32, 24), HALF)),
    "products broadcast": of(op.matmul, ((2, 1, 16, 32), HALF), ((3, 32, 24), HALF)),
    "product of any rows": of(op.matmul, ((N, 64), HALF), ((64, 32), HALF)),
    "product of int8": of(
        lambda a, b: op.matmul(a, b, out_dtype="int32"), ((16, 32), "int8"), ((32, 16), "int8")
    ),
    "product of two vectors": of(op.matmul, [65], [65]),
    "product by packed weights": layer(lambda: PackedLinear(64, 48), ((5, 64), HALF)),
    "product by decoded bytes": of(
        _decoded, ((9, 64), HALF), ((64, 16), "int8"), ((1, 32), HALF)
    ),
    "linear of einsum": of(lambda a, b: op.einsum((a, b), "bik,jk->bij"), [2, 5, 8], [6, 8]),
    "outer product": of(op.outer, [7], [9]),
    "convolution, bias, relu": of(
        lambda x, w, b: op.nn.relu(op.add(op.nn.conv2d(x, w, padding=1), b)),
        ((2, 16, 9, 9), HALF), ((24, 16, 3, 3), HALF), ((1, 24, 1, 1), HALF),
    ),
    "convolution, residual": of(
        lambda x, w: op.add(op.nn.conv2d(x, w, padding=1), x),
        ((2, 16, 9, 9), HALF), ((16, 16, 3, 3), HALF),
    ),
    "convolution of NHWC": of(
        lambda x, w: op.nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="OHWI"),
        ((2, 9, 9, 16), HALF), ((24, 3, 3, 16), HALF),
    ),
    "convolution of any batch": of(
        lambda x, w: op.nn.conv2d(x, w, strides=2), ((N, 8, 9, 9), HALF), ((16, 8, 3, 3), HALF)
    ),
    "depthwise": of(lambda x, w: op.nn.conv2d(x, w, groups=8), IMAGE, [8, 1, 3, 3]),
    "dilated": of(lambda x, w: op.nn.conv2d(x, w, dilation=2), IMAGE, [5, 8, 3, 3]),
    "transposed convolution": of(
        lambda x, w: op.nn.conv2d_transpose(x, w, strides=2, output_padding=1), IMAGE, [8, 5, 3, 3]
    ),
    "conv1d": of(lambda x, w: op.nn.conv1d(x, w, padding=1), [2, 8, 15], [6, 8, 3]),
    "conv3d": of(op.nn.conv3d, [1, 8, 5, 5, 5], [6, 8, 3, 3, 3]),
    "conv of three channels": layer(lambda: nn.Conv2D(3, 32, 3), (1, 3, 32, 32)),
    "conv of images of any size": layer(lambda: nn.Conv2D(3, 8, 3), (1, 3, "n", "n")),
    "linear of any rows and columns": layer(lambda: nn.Linear(16, 24), ("m", "n", 16)),
    "layer norm": layer(lambda: nn.LayerNorm(24), (2, 7, 24)),
    "layer norm of any rows": layer(lambda: nn.LayerNorm(24), ("n", 24)),
    "rms norm": layer(lambda: nn.RMSNorm(24, [-1], bias=False), (2, 7, 24)),
    "group norm": layer(lambda: nn.GroupNorm(4, 8), (2, 8, 5, 5)),
    "embedding": layer(lambda: nn.Embedding(40, 12), ((4,), "int32")),
    "embedding of rows": layer(lambda: nn.Embedding(40, 12), (("n", 5), "int32")),
    "batch norm, training": of(
        lambda x, g, b, m, v: op.nn.batch_norm(x, g, b, m, v, axis=1, training=True)[0],
        IMAGE, [8], [8], [8], [8],
    ),
    "dropout and softmax": of(lambda x: op.nn.softmax(op.nn.dropout(x)[0], 1), [3, 40, 5]),
    "cross entropy": of(
        lambda p, t: op.nn.cross_entropy_with_logits(op.nn.log_softmax(p), t), [8, 12], [8, 12]
    ),
    "negative log likelihood": of(
        lambda p, t, w: op.nn.nll_loss(op.nn.log_softmax(p), t, w, "mean"),
        [8, 12], ((8,), "int64"), [12],
    ),
    "nll of images": of(
        lambda p, t, w: op.nn.nll_loss(p, t, w, "sum"), [2, 6, 4, 4], ((2, 4, 4), "int64"), [6]
    ),
    "max pool's gradient": of(
        # Padded, for else TVM reads beyond the end.
        lambda g, x: op.grad.max_pool2d_backward(g, x, [3, 3], [2, 2], [1, 1, 1, 1]),
        [1, 8, 4, 4], [1, 8, 7, 7],
    ),
    "avg pool's gradient": of(
        lambda g, x: op.grad.avg_pool2d_backward(g, x, [3, 3], [2, 2]), [1, 8, 4, 4], IMAGE
    ),
    "nll's gradient": of(
        lambda g, p, t, w: op.grad.nll_loss_backward(g, p, t, w, "mean"),
        [], [8, 12], ((8,), "int64"), [12],
    ),
    "average pool": of(lambda x: op.nn.avg_pool2d(x, [3, 3], [2, 2], 1), IMAGE),
    "adaptive pool": of(lambda x: op.nn.adaptive_avg_pool2d(x, [3, 3]), IMAGE),
    "max pool of 3 dims": of(lambda x: op.nn.max_pool3d(x, 2, 2), [1, 3, 6, 6, 6]),
    "resize": of(lambda x: op.image.resize2d(x, (18, 18), layout="NCHW"), IMAGE),
    "grid sample": of(
        lambda x, g: op.image.grid_sample(x, g, "bilinear", "NCHW"), IMAGE, [1, 2, 5, 5]
    ),
    "pad by reflection": of(
        lambda x: op.nn.pad(x, [0, 0, 0, 0, 2, 2, 1, 1], "reflect"), IMAGE
    ),
    "cumulative sums": of(lambda x: op.cumsum(x, 1), [4, 33]),
    "cumulative products of any length": of(lambda x: op.cumprod(x, 0), [N, 3]),
    "sort": of(lambda x: op.sort(x, 1, True), [4, 33]),
    "top k": of(lambda x: op.topk(x, 5, 1, "values"), [4, 33]),
    "top k of any rows": of(lambda x: op.topk(x, 3, 1, "indices"), [N, 17]),
    "argsort": of(lambda x: op.argsort(x, 0, dtype="int32"), [33, 4]),
    "argmax": of(lambda x: op.argmax(x, 1), [6, 40]),
    "where": of(op.where, ((5, 7), "bool"), [5, 7], [7]),
    "counted": of(
        lambda x: op.sum(op.astype(op.greater(x, relax.const(0.5)), F32), 1), [6, 40]
    ),
    "triangles": of(lambda x: op.add(op.tril(x), op.triu(x, 1)), [9, 9]),
    "one hot": of(
        lambda i: op.one_hot(i, relax.prim_value(tirx.FloatImm(F32, 1.0)),
                             relax.prim_value(tirx.FloatImm(F32, 0.0)), 6, -1),
        ((7,), "int64"),
    ),
    "meshgrid": of(lambda a, b: op.add(_grid(a, b)[0], _grid(a, b)[1]), [5], [7]),
    "gather": of(lambda x, i: op.gather_elements(x, i, 1), [4, 9], ((4, 3), "int64")),
    "gather nd": of(lambda x, i: op.gather_nd(x, i, 1), [3, 9, 4], ((3, 2, 1), "int64")),
    "scatter": of(
        lambda x, i, u: op.scatter_elements(x, i, u, 1), [4, 9], ((4, 1), "int64"), [4, 1]
    ),
    "scatter nd": of(
        lambda x, i, u: op.scatter_nd(x, i, u, "add"), [9, 4], ((5, 1), "int64"), [5, 4]
    ),
    "index of tensors": of(
        lambda x, i, j: op.index_tensor(x, (i, j)), [5, 6, 4], ((3,), "int64"), ((3,), "int64")
    ),
    "take of any rows": of(lambda x, i: op.take(x, i, 0), [9, 12], ((N,), "int32")),
    "strided slice": of(lambda x: op.strided_slice(x, [0, 1], [1, 8], [6, 0], [2, -1]), [7, 9]),
    "split into three": of(
        lambda x: relax.Tuple([op.split(x, 3, 1)[i] for i in range(3)]), [4, 12]
    ),
    "split of any rows": of(
        lambda x: op.add(op.split(x, [4], 1)[0], op.split(x, [4], 1)[1]), [N, 8]
    ),
    "concatenation": of(lambda a, b: op.concat([a, b], 1), [3, 4], [3, 6]),
    "concatenation of any rows": of(lambda a, b: op.concat([a, b], 0), [N, 4], [6, 4]),
    "tile and repeat": of(lambda x: op.repeat(op.tile(x, [2, 1]), 3, 1), [3, 4]),
    "flip and roll": of(lambda x: op.flip(x, 1), [3, 7]),
    "collapse": of(lambda x: op.collapse_sum_to(x, [1, 5]), [3, 4, 5]),
    "variance": of(lambda x: op.variance(x, [1, 2], True), [3, 6, 8]),
    "std of any rows": of(lambda x: op.std(x, -1), [N, 24]),
    "products along axes": of(lambda x: op.prod(x, 0), [9, 5]),
    "bucketize": of(op.bucketize, [4, 9], [6]),
    "logical": of(op.logical_xor, ((4, 5), "bool"), ((4, 5), "bool")),
    "isnan, isinf, isfinite": of(
        lambda x: op.logical_and(op.isfinite(x), op.logical_not(op.isnan(x))), [4, 9]
    ),
    "power, mod, floor": of(
        lambda a, b: op.add(op.power(a, b), op.add(op.floor_mod(a, b), op.floor_divide(a, b))),
        [4, 9], [9],
    ),
    "trigonometry": of(
        lambda a: op.add(op.atan(op.tan(a)), op.add(op.asin(a), op.acosh(op.exp(a)))), [4, 9]
    ),
    "quantize and back": of(
        lambda x, s, z: op.dequantize(op.quantize(x, s, z, 1, "int8"), s, z, 1),
        [4, 9], [9], ((9,), "int8"),
    ),
    "space to depth": of(lambda x: op.nn.batch_flatten(x), IMAGE),
    "prelu": of(lambda x, a: op.nn.prelu(x, a, 1), IMAGE, [8]),
    "scores of float16": of(
        lambda q, k: op.nn.softmax(op.multiply(op.matmul(q, op.permute_dims(k, [0, 2, 1])),
                                               relax.const(0.25, HALF)), -1),
        ((2, 20, 16), HALF), ((2, 20, 16), HALF),
    ),
    "arange and full": of(
        lambda x: op.add(op.add(x, op.astype(op.arange(0, 9, 1, "int64"), F32)),
                         op.full([4, 9], relax.const(2.0), F32)),
        [4, 9],
    ),
    "ones of any rows": of(lambda x: op.add(x, op.ones([N, 4], F32)), [N, 4]),
    "whole row of symbols": of(lambda x: op.nn.softmax(x, -1), [4, N]),
    "sums of symbols": of(lambda x: op.sum(x, 0), [N, 7]),
    "two results": of(lambda x: relax.Tuple([op.exp(x), op.max(x, 1)]), [4, 9]),
    "views": of(lambda x: op.reshape(op.expand_dims(op.exp(x), 0), [2, 18]), [4, 9]),
    "views of any rows": of(lambda x: op.reshape(op.abs(x), [N * 4]), [N, 4]),
}  # fmt: skip
