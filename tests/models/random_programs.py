"""Random Relax functions of one to three operators, each known by its seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import relax, tirx

from tests.programs.relaxed import relax_module

op = relax.op
Rng = random.Random
#: Extents of dims: 1, primes, vectors, and around them.
EXTENTS = (1, 1, 2, 3, 5, 7, 8, 16, 17, 31, 33, 64)
FLOATS = ("float16", "float16", "float32", "bfloat16")
INTS = ("int32", "int64", "int8", "uint8")


@dataclass(frozen=True)
class Program:
    """Shapes and types of the parameters, and what is computed of them."""

    params: Sequence[tuple[Sequence[Any], str]]
    build: Callable[..., Any]


def shape_of(rng: Rng, least: int = 1, most: int = 4) -> list[int]:
    """A shape of few enough elements for the simulator."""
    rank = rng.randint(least, most)
    while prod(shape := [rng.choice(EXTENTS) for _ in range(rank)]) > 6000:
        pass
    return shape


def some(rng: Rng, *ways: Any) -> Any:
    """One of several."""
    return rng.choice(ways)


def elementwise(rng: Rng, n: Any) -> Program:
    """One operator of each element."""
    shape = [n, *shape_of(rng, 1, 3)] if n is not None else shape_of(rng)
    ways = [
        *(op.exp, op.sqrt, op.rsqrt, op.tanh, op.sigmoid, op.erf, op.floor, op.negative, op.square),
        *(op.sin, op.log, op.atan, op.ceil, op.round, op.abs, op.sign, op.cosh),
        *(op.nn.relu, op.nn.gelu, op.nn.gelu_tanh, op.nn.silu, op.nn.selu, op.nn.relu6),
        lambda a: op.nn.leakyrelu(a, 0.1),
        lambda a: op.clip(a, 0.3, 0.7),
        op.nn.softplus,
    ]
    casts = [lambda a, to=to: op.astype(a, to) for to in ("float32", "float16", "int32", "int8")]
    return Program([(shape, rng.choice(FLOATS))], rng.choice(ways + casts))


def integers(rng: Rng, n: Any) -> Program:
    """An operator of integers, also of two types."""
    shape, dtype = shape_of(rng), rng.choice(INTS)
    ways = [
        (op.add, 2),
        (op.subtract, 2),
        (op.multiply, 2),
        (op.maximum, 2),
        (op.bitwise_and, 2),
        (op.bitwise_xor, 2),
        (lambda a, b: op.where(op.equal(a, b), a, b), 2),
        (lambda a, b: op.astype(op.greater(a, b), "float16"), 2),
        (lambda a, b: op.left_shift(a, b), 2),
        (lambda a: op.astype(a, "float16"), 1),
        (lambda a: op.astype(a, "int64"), 1),
        (lambda a: op.sum(a, axis=-1), 1),
        (lambda a: op.max(a), 1),
        (lambda a: op.bitwise_not(a), 1),
        (lambda a: op.floor_divide(a, relax.const(3, dtype)), 1),
        (lambda a: op.floor_mod(a, relax.const(3, dtype)), 1),
    ]
    build, count = rng.choice(ways)
    return Program([(shape, dtype)] * count, build)


def booleans(rng: Rng, n: Any) -> Program:
    """Comparisons and masks, stored as ``bool`` or read as such."""
    shape, dtype = shape_of(rng), rng.choice(FLOATS)
    two = [(shape, dtype)] * 2
    ways = [
        Program(two, op.less),
        Program(two, lambda a, b: op.logical_not(op.greater_equal(a, b))),
        Program([(shape, "bool"), *two], op.where),
        Program([(shape, "bool")] * 2, op.logical_and),
        Program(
            [(shape, "bool"), (shape, dtype)],
            lambda m, a: op.masked_fill(a, m, relax.const(-1, dtype)),
        ),
        Program([(shape, "bool")], lambda m: op.astype(m, dtype)),
        Program([(shape, "bool")], lambda m: op.sum(op.astype(m, "int32"), axis=-1)),
    ]
    return rng.choice(ways)


def broadcasts(rng: Rng, n: Any) -> Program:
    """Two operands whose shapes broadcast, also of fewer dims."""
    shape = [n, *shape_of(rng, 1, 2)] if n is not None else shape_of(rng, 2)
    other = [one if rng.random() < 0.5 else 1 for one in shape][rng.randint(0, 1) :]
    dtype = rng.choice(FLOATS)
    two = some(rng, op.add, op.multiply, op.divide, op.minimum, op.subtract)
    turned = rng.random() < 0.5
    params = [(shape, dtype), (other, dtype)]
    return Program(params, (lambda a, b: two(b, a)) if turned else two)


def reductions(rng: Rng, n: Any) -> Program:
    """A reduction along any axes."""
    shape = [n, *shape_of(rng, 1, 3)] if n is not None else shape_of(rng)
    axes = rng.sample(range(len(shape)), rng.randint(1, len(shape)))
    keep, dtype = rng.random() < 0.5, rng.choice(FLOATS)
    axis = None if rng.random() < 0.1 else axes
    many = some(rng, op.sum, op.max, op.min, op.mean, op.variance, op.prod, op.std)
    one = some(rng, op.argmax, op.argmin)
    if dtype != "float32" and prod(e for e in shape if isinstance(e, int)) > 512:
        dtype = "float32"  # TVM adds up 16 bits in 16 bits, each thread less than the CPU.
    # Of bfloat16, TVM's code for the CPU fails; of a symbolic length, its buffers are the kernel's.
    if rng.random() < 0.2 and n is None and dtype != "bfloat16":
        return Program([(shape, dtype)], lambda a: one(a, axis=axes[0], keepdims=keep))
    return Program([(shape, dtype)], lambda a: many(a, axis=axis, keepdims=keep))


def norms(rng: Rng, n: Any) -> Program:
    """A softmax or a norm."""
    shape = [n, *shape_of(rng, 1, 2)] if n is not None else shape_of(rng, 2)
    dtype, axis = rng.choice(FLOATS), rng.randrange(len(shape))
    last = [shape[-1]]
    groups = next(g for g in (4, 3, 2, 1) if isinstance(shape[1], int) and shape[1] % g == 0)
    dtype = "float32" if dtype == "bfloat16" else dtype  # TVM has norms of these only.
    affine = [([shape[1]], dtype)] * 2
    image = [*shape, some(rng, 1, 3, 4)] if len(shape) < 4 else shape
    inner = list(range(2, len(image)))
    ways = [
        Program([(shape, dtype)], lambda a: op.nn.softmax(a, axis=axis)),
        Program([(shape, dtype)], lambda a: op.nn.log_softmax(a, axis=-1)),
        Program(
            [(shape, dtype), (last, dtype), (last, dtype)],
            lambda a, g, b: op.nn.layer_norm(a, g, b, axes=[-1]),
        ),
        Program([(shape, dtype), (last, dtype)], lambda a, g: op.nn.rms_norm(a, g, axes=[-1])),
        Program(
            [(image, dtype), *affine], lambda a, g, b: op.nn.group_norm(a, g, b, groups, 1, inner)
        ),
        Program([(image, dtype), *affine], lambda a, g, b: op.nn.instance_norm(a, g, b, 1, inner)),
        Program(
            [(image, dtype), *affine * 2],
            lambda a, g, b, m, v: op.nn.batch_norm(a, g, b, m, v, 1, training=False)[0],
        ),
    ]
    return rng.choice(ways)


def products(rng: Rng, n: Any) -> Program:
    """A product of any ranks, either storage order, prologue and epilogue."""
    sizes = (1, 2, 5, 8, 16, 24, 33, 64)
    m, k, c = (rng.choice(sizes) for _ in range(3))
    dtype, kind = some(rng, "float16", "float16", "float32", "bfloat16", "int8"), rng.random()
    batch = some(rng, [], [], [2], [1], [3, 1], [1, 2], [2, 3])
    other = some(rng, [], batch, [1] * len(batch))
    rows = n if n is not None and rng.random() < 0.7 else m
    if n is not None and rows is m:
        batch = [n, *batch][-2:]
        other = some(rng, [], batch)
    a, b = [*batch, rows, k], [*other, k, c]
    turned, bias = rng.random() < 0.5, rng.random() < 0.4
    wide = (
        "int32" if dtype == "int8" else some(rng, None, "float32" if dtype != "float32" else None)
    )
    if kind < 0.1:
        a = [k]
    elif kind < 0.2:
        b, turned, bias = [k], False, False
    if turned:
        b[-1], b[-2] = b[-2], b[-1]
    first = some(rng, None, op.nn.relu, op.abs)
    last = some(rng, None, op.nn.relu, op.abs, lambda x: op.multiply(x, x))

    def build(x: Any, y: Any, *z: Any) -> Any:
        if turned:
            y = op.permute_dims(y, [*range(len(b) - 2), len(b) - 1, len(b) - 2])
        if first is not None and dtype != "int8":
            x = first(x)
        out = op.matmul(x, y, out_dtype=wide)
        out = op.add(out, z[0]) if z else out
        return out if last is None else last(out)

    added = [([c], wide or dtype)] if bias else []
    return Program([(a, dtype), (b, dtype), *added], build)


def convolutions(rng: Rng, n: Any) -> Program:
    """A convolution of one to three dims: groups, strides, paddings, dilations, transposed."""
    dims = some(rng, 1, 2, 2, 2, 3)
    size, dtype = some(rng, 4, 7, 8), some(rng, "float16", "float16", "float32", "bfloat16")
    groups = some(rng, 1, 1, 1, 2, 8)
    channels, out = 8 * some(rng, 1, 2), 8 * some(rng, 1, 2, 3)
    if rng.random() < 0.25:
        channels, out, groups = 3, some(rng, 4, 5), 1
    batch = n if n is not None else some(rng, 1, 2, 3)
    reach, stride = some(rng, 1, 3), some(rng, 1, 1, 2)
    padding, dilation = some(rng, 0, 1), some(rng, 1, 1, 2) if size > 4 else 1
    image = [batch, channels, *[size] * dims] if dims < 3 else [batch, channels, 4, 5, 4]
    if dims == 3:
        dilation = 1
    how = {"strides": stride, "padding": padding, "dilation": dilation, "groups": groups}
    transposed = rng.random() < 0.2
    names = {1: "conv1d", 2: "conv2d", 3: "conv3d"}
    call = getattr(op.nn, names[dims] + ("_transpose" if transposed else ""))
    weight = [channels, out // groups] if transposed else [out, channels // groups]
    last = some(rng, None, op.nn.relu, op.nn.silu)
    layouts = {}
    if dims == 2 and not transposed and rng.random() < 0.3:
        image = [image[0], *image[2:], channels]
        layouts = {"data_layout": "NHWC", "kernel_layout": "OIHW", "out_layout": "NHWC"}

    def build(x: Any, w: Any, *bias: Any) -> Any:
        y = call(x, w, **how, **layouts)
        y = op.add(y, bias[0]) if bias else y
        return y if last is None else last(y)

    added = [([1, out, *[1] * dims], dtype)] if rng.random() < 0.4 and not layouts else []
    return Program([(image, dtype), ([*weight, *[reach] * dims], dtype), *added], build)


def pooling(rng: Rng, n: Any) -> Program:
    """A pool, a resize or a shuffle of pixels."""
    dims, dtype = some(rng, 1, 2, 2, 3), rng.choice(FLOATS)
    size = [some(rng, 4, 6, 7, 9) for _ in range(dims)]
    shape = [n if n is not None else some(rng, 1, 2), some(rng, 1, 3, 4, 8), *size]
    pool, stride, padding = some(rng, 2, 3), some(rng, 1, 2), some(rng, 0, 1)
    most = getattr(op.nn, f"max_pool{dims}d")
    mean = getattr(op.nn, f"avg_pool{dims}d")
    adaptive = getattr(op.nn, f"adaptive_avg_pool{dims}d")
    to = [some(rng, 1, 2, 3, one // 2, one) for one in size]
    ways = [
        lambda a: most(a, [pool] * dims, stride, padding, ceil_mode=stride == 2),
        lambda a: mean(a, [pool] * dims, stride, padding, count_include_pad=stride == 1),
        lambda a: adaptive(a, to),
        lambda a: adaptive(a, [1] * dims),
    ]
    if dims == 2:
        method = some(rng, "nearest_neighbor", "linear", "cubic")
        mode = some(rng, "half_pixel", "asymmetric", "align_corners")
        target = [2 * one for one in size] if rng.random() < 0.5 else [5, 7]
        resize = lambda a: op.image.resize2d(  # noqa: E731
            a, relax.ShapeExpr(target), layout="NCHW", method=method,
            coordinate_transformation_mode=mode,
            rounding_method="round" if mode != "asymmetric" else "floor",
        )  # fmt: skip
        ways += [resize, resize]
    return Program([(shape, dtype)], rng.choice(ways))


def movements(rng: Rng, n: Any) -> Program:
    """A permutation, slice, pad, concatenation, repetition or split."""
    shape = [n, *shape_of(rng, 1, 3)] if n is not None else shape_of(rng, 1, 4)
    dtype = some(rng, *FLOATS, *INTS)
    rank, params = len(shape), [(shape, dtype)]
    axis = rng.randrange(n is not None, rank)
    length = shape[axis]
    order = rng.sample(range(rank), rank)
    begin, step = rng.randrange(length), some(rng, 1, 2, 3)
    pads = [some(rng, 0, 0, 1, 3) for _ in range(2 * rank)]
    other = [*shape[:axis], rng.choice(EXTENTS), *shape[axis + 1 :]]
    # Relax takes a split into one part for a tensor, not for a tuple of one.
    parts = next(p for p in (4, 3, 2, length) if length % p == 0)
    times = [some(rng, 1, 2, 3) for _ in range(rank)]
    grown = [some(rng, 2, 3), *shape]
    ways = [
        Program(params, lambda a: op.permute_dims(a, order)),
        Program(params, lambda a: op.strided_slice(a, [axis], [begin], [length], [step])),
        Program(params, lambda a: op.strided_slice(a, [axis], [length - 1], [-length - 1], [-1])),
        Program(params, lambda a: op.nn.pad(a, pads, pad_value=1)),
        Program(params * 2, lambda a, b: op.concat([a, b, a], axis=axis)),
        Program([*params, (other, dtype)], lambda a, b: op.concat([a, b], axis=axis)),
        Program(params, lambda a: op.repeat(a, 2, axis=axis)),
        Program(params, lambda a: op.flip(a, axis=axis)),
        Program(params, lambda a: op.expand_dims(op.permute_dims(a, order), axis)),
        Program(params, lambda a: op.broadcast_to(a, grown)),
        Program(params, lambda a: op.split(a, parts, axis=axis)[0] if parts > 1 else op.abs(a)),
        Program(params * 2, lambda a, b: op.stack([a, b], axis=axis)),
    ]  # fmt: skip
    if n is None:
        ways += [
            Program(params, lambda a: op.tile(a, times)),
            Program(params, lambda a: op.flatten(op.permute_dims(a, order))),
            Program(params, lambda a: op.layout_transform(
                a, _in_fours(rank), pad_value=_zero(dtype))),
        ]  # fmt: skip
    if rank == 2:
        ways += [Program(params, lambda a: op.tril(a, begin % 3 - 1)), Program(params, op.triu)]
    return rng.choice(ways)


def _in_fours(rank: int) -> tirx.IndexMap:
    return tirx.IndexMap.from_func(lambda *i: (*i[:-1], i[-1] // 4, i[-1] % 4), ndim=rank)


def _zero(dtype: str) -> Any:
    return tirx.FloatImm(dtype, 0.0) if "float" in dtype else tirx.IntImm(dtype, 0)


def gathers(rng: Rng, n: Any) -> Program:
    """Reads and writes at places that tensors give."""
    shape = [3 + abs(one) for one in shape_of(rng, 2, 3)]
    while prod(shape) > 6000:
        shape = [3 + abs(one) for one in shape_of(rng, 2, 3)]
    dtype, kind, axis = rng.choice(FLOATS), some(rng, "int32", "int64"), rng.randrange(len(shape))
    count = n if n is not None else rng.choice(EXTENTS)
    many = [(shape, dtype), ([count], kind)]
    places = list(shape)
    places[axis] = some(rng, 1, 2, 3)
    tables = [(shape, dtype), (places, kind)]
    points = [(shape, dtype), ([count, 2], "int64")]
    updates = [*points, ([count, *shape[2:]], dtype)]
    how = some(rng, "add", "mul", "min", "max")
    ways = [
        Program(many, lambda a, i: op.take(a, i, axis=axis)),
        Program([(shape, dtype), ([2, count], kind)], lambda a, i: op.take(a, i, axis=0)),
        Program(tables, lambda a, i: op.gather_elements(a, i, axis=axis)),
        Program(points, lambda a, i: op.gather_nd(a, i)),
        Program([*tables, (places, dtype)],
                lambda a, i, u: op.scatter_elements(a, i, u, axis=axis, reduction=how)),
        Program(updates, lambda a, i, u: op.scatter_nd(a, i, u, reduction=how)),
        Program([([count, 2], kind)], lambda i: op.one_hot(i, *_on_and_off(), 5, -1)),
    ]  # fmt: skip
    return rng.choice(ways)


def _on_and_off() -> list[Any]:
    return [relax.prim_value(tirx.FloatImm("float32", one)) for one in (1.0, 0.0)]


def scans(rng: Rng, n: Any) -> Program:
    """Sums so far, sorts, and what is the largest; TVM's own schedules."""
    shape, dtype = shape_of(rng, 1, 3), some(rng, "float16", "float32", "int32")
    axis = rng.randrange(len(shape))
    most = some(rng, 1, 2)
    ways = [
        lambda a: op.cumsum(a, axis=axis),
        lambda a: op.cumsum(a, axis=axis, dtype="float32", exclusive=True),
        lambda a: op.cumprod(a, axis=axis),
        lambda a: op.sort(a, axis=-1, descending=most == 2),
        lambda a: op.argsort(a, axis=-1),
        lambda a: op.topk(a, min(most, shape[-1]), axis=-1, ret_type="values"),
    ]
    return Program([(shape, dtype)], rng.choice(ways))


def generated(rng: Rng, n: Any) -> Program:
    """Tensors of nothing but their places, used beside a parameter."""
    dtype, m, k = some(rng, "float32", "float16", "int32"), *(rng.choice(EXTENTS) for _ in range(2))
    rows = n if n is not None else m
    ways = [
        lambda a: op.add(a, op.astype(op.arange(0, k, 1, "int64"), dtype)),
        lambda a: op.add(a, op.full([rows, k], relax.const(2, dtype), dtype)),
        lambda a: op.where(op.less(op.arange(0, k, 1, "int32"), relax.const(3, "int32")), a,
                           op.zeros([rows, k], dtype)),
        lambda a: op.multiply(a, op.ones([rows, k], dtype)),
        lambda a: op.add(a, op.eye(rows, k, 0, dtype)) if n is None else op.zeros_like(a),
        lambda a: op.full_like(a, relax.const(1, dtype)),
    ]  # fmt: skip
    return Program([([rows, k], dtype)], rng.choice(ways))


def chains(rng: Rng, n: Any) -> Program:
    """Two or three operators that fuse: rows, sums of others, and permutations."""
    shape = [n, *shape_of(rng, 1, 2)] if n is not None else shape_of(rng, 2, 3)
    dtype = rng.choice(FLOATS)
    last, rank = [(shape[-1:], dtype)], len(shape)
    turn = [*range(rank - 2), rank - 1, rank - 2]
    ways = [
        Program([(shape, dtype), *last], lambda a, b: op.nn.softmax(op.add(a, b), axis=-1)),
        Program([(shape, dtype)] * 2, lambda a, b: op.sum(op.multiply(a, b), axis=-1)),
        Program([(shape, dtype)] * 2, lambda a, b: op.permute_dims(op.add(a, b), turn)),
        Program([(shape, dtype)], lambda a: op.sum(op.permute_dims(op.exp(a), turn), axis=0)),
        Program([(shape, dtype)], lambda a: op.divide(a, op.max(a, axis=-1, keepdims=True))),
        Program([(shape, dtype)], lambda a: op.subtract(op.mean(a, axis=0, keepdims=True), a)),
        Program([(shape, dtype)], lambda a: relax.Tuple([op.exp(a), op.sum(a, axis=-1)])),
        Program([(shape, dtype)] * 2, lambda a, b: op.concat([op.nn.relu(a), op.exp(b)], axis=-1)),
        Program([(shape, dtype)], lambda a: op.nn.silu(op.strided_slice(a, [rank - 1], [0], [1]))),
        Program([(shape, dtype), *last, *last], lambda a, g, b: op.nn.relu(
            op.nn.layer_norm(op.add(a, a), g, b, axes=[-1]))) if dtype != "bfloat16" else
        Program([(shape, dtype)], op.nn.relu),
        Program([(shape, dtype)],
                lambda a: op.astype(op.cumsum(op.astype(a, "float32"), -1), dtype)),
    ]  # fmt: skip
    return rng.choice(ways)


FAMILIES = (
    elementwise, integers, booleans, broadcasts, reductions, norms, products, products,
    convolutions, convolutions, pooling, movements, movements, gathers, scans, generated,
    chains, chains,
)  # fmt: skip


def random_program(seed: int) -> tuple[str, Program]:
    """The program of a seed, and the name of its family; every fourth has a symbolic size."""
    rng = random.Random(seed)
    family = FAMILIES[seed % len(FAMILIES)]
    n = tirx.Var("n", "int64") if rng.random() < 0.25 else None
    return family.__name__, family(rng, n)


def module(program: Program) -> tvm.IRModule:
    """A Relax module with it as ``main``."""
    return relax_module(program.build, *program.params)
