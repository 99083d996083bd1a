"""Extents that are computed from a size become variables; what is read by them is in bounds."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax, te, tirx, topi
from tvm.relax import op
from tvm_ffi import structural_equal

from tests.models import running
from tests.models.running import check, only, scheduled
from tests.programs.relaxed import relax_module
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.models.any_size import pixels
from tvm_layout_ext.models.any_size.pixels_as_rows import without_places
from tvm_layout_ext.models.any_size.sizes_as_variables import sizes_as_variables
from tvm_layout_ext.models.any_size.whole_tiles import whole_tiles

K = tirx.IntImm("int64", 64)


def sizes(*names: str) -> list[Any]:
    return [te.var(name, "int64") for name in names]


def tensor(name: str, *shape: Any, dtype: str = "float16") -> te.Tensor:
    wide = [tirx.IntImm("int64", n) if isinstance(n, int) else n for n in shape]
    return te.placeholder(wide, dtype, name=name)


def shapes(func: tirx.PrimFunc) -> list[str]:
    tensors = (param for param in func.params if hasattr(param, "shape"))
    return [" ".join(str(n).replace("T.int64", "") for n in one.shape) for one in tensors]


def copied(before: Any, after: Any, *more: Any) -> tirx.PrimFunc:
    x = tensor("x", before)
    return te.create_prim_func([*more, x, te.compute((after,), lambda i: x[i] * 2, name="y")])


def product(
    rows: Any, a: te.Tensor, place: Any, *more: te.Tensor, given: Any = None
) -> tirx.PrimFunc:
    """Rows of ``a``, made of what is given, at places by 64 columns, and what is added to each."""
    w = tensor("w", K, K, dtype=a.dtype)
    k = te.reduce_axis((0, K), name="k")

    def term(*at: Any) -> Any:
        factors = a[(*place(*at[:-1]), k)], w[at[-1], k]
        return te.sum(factors[0].astype("float32") * factors[1].astype("float32"), axis=k)

    found = [te.compute((*rows, K), term, name="product")]
    if more:
        found.append(te.compute((*rows, K), lambda *at: found[0][at] + more[0][at], name="y"))
    return te.create_prim_func([a if given is None else given, w, *more, found[-1]])


def test_computed_extents_are_variables() -> None:
    (s,) = sizes("s")
    half = (s - 1) // 4 + 1
    found = sizes_as_variables(copied(half, half, s))
    assert shapes(found) == ["s_0", "s_0"]
    assert "//" not in str(found)
    assert [param.name for param in found.params] == ["s", "x", "y"]


def test_of_a_size_and_one_less_both_are_variables() -> None:
    (n,) = sizes("n")
    found = sizes_as_variables(copied(n, n - 1))
    assert shapes(found) == ["n", "n_0"]
    assert "n - " not in str(found)


def test_a_size_that_no_parameter_has_is_written_by_one_that_some_have() -> None:
    (n,) = sizes("n")
    x = tensor("x", n - 1)
    y = te.compute((n - 1,), lambda i: x[i] * n.astype("float16"), name="y")
    found = sizes_as_variables(te.create_prim_func([x, y]))
    assert shapes(found) == ["n_0", "n_0"]
    assert 'T.Cast("float16", n_0 + T.int64(1))' in str(found)


def test_a_size_that_only_a_multiple_would_tell_stays() -> None:
    (s,) = sizes("s")
    x = tensor("x", s * 2)
    func = te.create_prim_func([x, te.compute((s * 2,), lambda i: x[i] * s.astype("float16"))])
    assert sizes_as_variables(func).same_as(func)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_products_of_rows_behind_the_first(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    b, n = sizes("b", "n")
    alone = product([n - 1], tensor("x", n, K, dtype=dtype), lambda i: (i + 1,))
    images = product([b, n - 1], tensor("x", b, n, K, dtype=dtype), lambda a, i: (a, i + 1))
    x = tensor("x", n, K, dtype=dtype)
    turned = te.compute((n - 1, K), lambda i, j: x[n - 1 - i, j], name="turned")
    back = product([n - 1], turned, lambda i: (i,), given=x)
    for func in (alone, images, back):
        one = only(tvm.IRModule({"func": func}))
        for size in (2, 14, *([] if func is images else [66])):
            monkeypatch.setattr(running, "SIZE", size)
            check(one, "tensor cores" if dtype == "float16" else "threads")


def test_rows_of_a_table_that_has_more_than_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    (n,) = sizes("n")
    some = tensor("some", n, K, dtype="float32")
    one = only(tvm.IRModule({"func": product([n], tensor("table", 20, K), lambda i: (i,), some)}))
    for size in (3, 20):
        monkeypatch.setattr(running, "SIZE", size)
        check(one, "tensor cores")


def terms(a: Any, b: Any, count: Any) -> tirx.PrimFunc:
    """A product of two factors of so many terms."""
    k = te.reduce_axis((0, count), name="k")
    given = [one.op.input_tensors[0] if one.op.input_tensors else one for one in (a, b)]

    def term(i: Any, j: Any) -> Any:
        return te.sum(a[i, k].astype("float32") * b[j, k].astype("float32"), axis=k)

    return te.create_prim_func([*given, te.compute((K, K), term, name="y")])


def test_terms_behind_the_last_are_zero_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    (n,) = sizes("n")
    a, b, less = tensor("a", K, n), tensor("b", K, n), tensor("less", K, n - 1)
    for func in (terms(a, less, n - 1), terms(topi.exp(a), topi.exp(b), n)):
        with pytest.raises(ScheduleError, match="is not zero behind the"):
            whole_tiles(sizes_as_variables(func))
    one = only(tvm.IRModule({"func": terms(topi.cast(a, "float32"), topi.cast(b, "float32"), n)}))
    monkeypatch.setattr(running, "SIZE", 70)
    check(one, "threads")


def test_intermediate_results_whose_vectors_fill_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    b, n = sizes("b", "n")
    depth = tirx.IntImm("int64", 72)
    x, w, k = tensor("x", b, n, depth), tensor("w", K, depth), te.reduce_axis((0, depth), "k")
    e = te.compute((b, n, depth), lambda *at: te.exp(x[at].astype("float32")).astype("float16"))

    def term(a: Any, i: Any, j: Any) -> Any:
        return te.sum(e[a, i, k].astype("float32") * w[j, k].astype("float32"), axis=k)

    func = te.create_prim_func([x, w, te.compute((b, n, K), term, name="y")])
    one = only(tvm.IRModule({"func": func}))
    for size in (1, 13):
        monkeypatch.setattr(running, "SIZE", size)
        check(one, "tensor cores")


@pytest.mark.whole
def test_images_stored_by_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a model's first: the pixels of a step are channels of one."""

    def build(x: Any, w: Any) -> Any:
        return op.nn.relu(op.nn.conv2d(op.nn.max_pool2d(x, 2, 2), w, strides=2, padding=1))

    every = scheduled(relax_module(build, (2, 3, "h", "w"), (24, 3, 3, 3)))
    (one,) = (one for one in every if "conv2d" in one.name)
    for size in (26, 63):
        monkeypatch.setattr(running, "SIZE", size)
        check(one, "warpgroups")


def convolved(x: Any, w: Any, *more: Any, **how: Any) -> Any:
    y = op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="OHWI", **how)
    for one in more:
        y = op.add(y, one)
    return op.nn.relu(y)


@pytest.mark.parametrize(
    ("images", "size", "how"),
    [
        (2, 3, {"padding": 1}),
        (1, 3, {"padding": 1, "strides": 2}),
        ("n", 3, {"padding": (2, 1, 0, 3), "dilation": 2}),
        (2, 5, {"strides": (3, 1)}),
        (2, 1, {"strides": 2}),
        (2, 1, {}),
    ],
)
def test_images_of_any_size_by_wgmma(
    monkeypatch: pytest.MonkeyPatch, images: Any, size: int, how: dict[str, Any]
) -> None:
    shapes = (images, "h", "w", 64), (40, size, size, 64)
    if how == {"padding": 1}:
        shapes += ((images, "h", "w", 40), (40,))
    monkeypatch.setattr(pixels, "_MOST_FEW", 150)
    monkeypatch.setattr(pixels, "_FEW", 3)
    one = only(relax_module(lambda *given: convolved(*given, **how), *shapes))
    for number in (9, 20):
        monkeypatch.setattr(running, "SIZE", number)
        check(one, "warpgroups")


def test_what_depends_on_a_size_is_no_case_for_wgmma(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel is written for numbers that stand for sizes."""
    h, w = sizes("h", "w")
    x, v = tensor("x", 2, h + 2, w, 64), tensor("v", K, 3, 64)
    r, k = (te.reduce_axis((0, tirx.IntImm("int64", n)), name) for n, name in ((3, "r"), (64, "k")))

    def term(n: Any, i: Any, j: Any, f: Any) -> Any:
        factors = x[n, i + r, j, k], v[f, r, k]
        return te.sum(factors[0].astype("float32") * factors[1].astype("float32"), axis=[r, k])

    y = te.compute((tirx.IntImm("int64", 2), h, w, K), term, name="y")
    z = te.compute(y.shape, lambda *at: y[at] + h.astype("float32"), name="z")
    for last, rule in ((y, "warpgroups"), (z, "tensor cores")):
        one = only(tvm.IRModule({"func": te.create_prim_func([x, v, last])}))
        monkeypatch.setattr(running, "SIZE", 11)
        check(one, rule)


@pytest.mark.whole
def test_a_padded_image_that_is_stored_has_no_pixel_behind_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its pixels are no whole number of tiles, so that threads need their condition."""

    def turned(x: Any, w: Any) -> Any:
        return op.nn.conv2d_transpose(x, w, (2, 2), output_padding=(1, 1))

    def whole(x: Any, w: Any) -> Any:
        # What makes an even number of pixels of a size that a layer before has halved.
        return turned(op.strided_slice(x, [2, 3], [0, 0], [99, 99], [2, 2]), w)

    for build in (turned, whole):
        for one in scheduled(relax_module(build, (2, 6, "h", "w"), (6, 24, 3, 3))):
            for size in (7, 12):
                monkeypatch.setattr(running, "SIZE", size)
                check(one)


def test_sums_of_symbolic_images_keep_a_known_number_in_registers() -> None:
    """CUDA has no arrays of a symbolic length."""

    def build(x: Any, scale: Any, bias: Any) -> Any:
        return op.nn.group_norm(x, scale, bias, 4, 1, [2, 3])

    mod = relax_module(build, (2, 32, "h", "w"), (32,), (32,))
    one = only(relax.transform.LegalizeOps()(mod))  # As TVM writes it.
    assert one.choice.rule == "blocks"
    check(one)


def test_tiles_of_whole_images_of_any_size_are_refused() -> None:
    """By dlight a block kept all of a convolution that a pad behind it reads."""

    def build(x: Any, w: Any) -> Any:
        return op.nn.pad(op.nn.relu(op.nn.conv2d(x, w, padding=1)), [0, 0, 0, 0, 0, 0, 0, 1])

    mod = relax_module(build, (3, 3, "h", "w"), (3, 3, 3, 3), dtype="bfloat16")
    (one,) = (f for f in scheduled(mod) if "conv2d" in f.name)
    assert one.choice.text.startswith("dlight's Fallback")
    check(one)


def test_repeated_rows_are_no_copy_of_a_whole_parameter() -> None:
    (n,) = sizes("n")
    x = tensor("x", n)
    y = te.compute((K, n), lambda _, j: x[j], name="y")
    func = te.create_prim_func([x, te.compute((K, n), lambda i, j: y[i, j] * 2, name="z")])
    assert structural_equal(without_places(func), func)


@pytest.mark.parametrize(
    "extent", [lambda n: n >> 1, lambda n: tirx.Select(n > 3, n, n + 1), lambda n: n // n]
)
def test_extents_that_are_no_arithmetic_stay(extent: Any) -> None:
    (n,) = sizes("n")
    func = copied(n, extent(n))
    assert structural_equal(sizes_as_variables(func), func)


@pytest.mark.whole
def test_a_batch_that_stands_for_no_number_is_multiplied_otherwise() -> None:
    shapes = ("n", "h", "w", 64), (11, 5, 7, 64)
    one = only(relax_module(lambda x, w: convolved(x, w, padding=(2, 3)), *shapes))
    assert one.choice.rule in ("warpgroups", "tensor cores")


def test_images_that_are_many_by_their_width_have_one_kernel() -> None:
    shapes = (20, "h", 224, 64), (128, 3, 3, 64)
    one = only(relax_module(lambda x, w: convolved(x, w, padding=1), *shapes))
    assert (one.choice.rule, one.choice.text.count("conv2d")) == ("warpgroups", 1)
