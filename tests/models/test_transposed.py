"""Transposed convolutions become convolutions whose channels become pixels."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import assume, given, reject
from hypothesis import strategies as st
from tvm import relax
from tvm.relax import op

from benchmarks.relax_numbers import error_of
from tests.models.cpu import by_cpu, given_to, require_same
from tests.models.running import SIZE, Scheduled, array_of, check, scheduled
from tests.programs.relaxed import emit, relax_module
from tvm_layout_ext import simulate
from tvm_layout_ext.models import pipeline
from tvm_layout_ext.models.convolutions.transposed import TransposedConvolutions
from tvm_layout_ext.models.fold_constants import FoldConstants
from tvm_layout_ext.models.relax_values import dims_of, name_of, nodes_of

SIDE = st.integers(1, 5)


def transposed(
    image: tuple[int, ...], weight: tuple[int, ...], dtype: str = "float16", **attrs: Any
) -> tvm.IRModule:
    """A transposed convolution of one to three dims and a ReLU."""
    call = getattr(op.nn, f"conv{len(image) - 2}d_transpose")
    return relax_module(
        lambda x, w: op.nn.relu(call(x, w, **attrs)), x=image, w=weight, dtype=dtype
    )


def operators(mod: tvm.IRModule) -> set[str]:
    """Names of what a module calls."""
    return {name_of(one) for one in nodes_of(mod["main"])}


@given(
    st.lists(
        st.tuples(SIDE, st.integers(1, 5), st.integers(1, 4), *[st.integers(0, 2)] * 3),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([1, 3]),
    st.booleans(),
)
def test_any_window_step_and_padding_gives_the_same(
    dims: Any, groups: int, is_symbolic: bool
) -> None:
    if is_symbolic:
        dims = [(SIZE, *more) for _, *more in dims]
    sizes, window, steps, before, after, more = (list(one) for one in zip(*dims, strict=True))
    assume(all(one < step for one, step in zip(more, steps, strict=True)))
    rows = zip(sizes, window, steps, before, after, more, strict=True)
    assume(all((n - 1) * s + k + m - b - a > 0 for n, k, s, b, a, m in rows))
    mod = transposed(
        (2, 2 * groups, *("dhw"[-len(sizes) :] if is_symbolic else sizes)),
        (2 * groups, 3, *window),
        "float32",
        strides=steps,
        padding=[*before, *after],
        output_padding=more,
        groups=groups,
    )
    found = TransposedConvolutions()(mod)
    assert not any("transpose" in one for one in operators(found))
    arrays = given_to(mod)
    try:
        (got,), (wanted,) = by_cpu(found, arrays), by_cpu(mod, arrays)
    except tvm.error.InternalError as error:
        # Of symbolic sizes TVM's own pipeline ends over some reshapes.
        if "CanProveDivisible" not in str(error):
            raise
        reject()
    assert got.shape == wanted.shape
    assert error_of([got], [wanted]) <= 1e-5


def test_pixels_of_any_number_are_cut_off_where_they_are_read() -> None:
    for one in scheduled(transposed((2, 2, "h"), (2, 3, 5), "float32", strides=[2])):
        if "take" in one.choice.name:
            _require_pixels(one)
        else:
            check(one)


def test_a_reshape_that_tvm_ends_over_is_a_copy(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the range that is cut off is read by a kernel of its own."""
    monkeypatch.setattr(pipeline, "FusionPatterns", lambda: tvm.transform.Sequential([]))
    for one in scheduled(transposed((2, 2, "h"), (2, 3, 5), "float32", strides=[2])):
        check(one)
    assert "No reshape becomes a view" in caplog.text


def _require_pixels(one: Scheduled) -> None:
    """Of what is cut off by a range of places TVM 0.27 makes no code for the CPU."""
    arrays = [array_of(param, np.random.default_rng(0)) for param in one.before.params]
    batch, channels, _, steps = arrays[0].shape
    pixels = arrays[0].reshape(batch, 2, channels // 2, steps).transpose(0, 2, 3, 1)
    report = simulate(one.program, *arrays, progress=False)
    (got,) = report.outputs.values()
    want = np.maximum(pixels.reshape(batch, channels // 2, -1)[..., : got.shape[-1]], 0)
    assert (got == want).all()
    assert not report.hazards


@pytest.mark.parametrize(
    "attrs", [{"strides": [2, 2], "dilation": [2, 2]}, {"data_layout": "NHWC"}]
)
def test_others_stay_as_they_are(attrs: dict[str, Any]) -> None:
    mod = transposed((1, 8, 8, 8), (8, 8, 2, 2), **attrs)
    tvm.ir.assert_structural_equal(TransposedConvolutions()(mod), mod)


def test_weights_that_are_constants_are_turned_while_compiling() -> None:
    mod = transposed((1, 8, 5, 5), (8, 4, 3, 3), strides=[2, 2], padding=[1, 1])
    weight = np.random.default_rng(0).standard_normal((8, 4, 3, 3)).astype("float16")
    mod = relax.transform.BindParams("main", {"w": weight})(mod)
    found = FoldConstants()(TransposedConvolutions()(mod))
    assert not operators(found) & {"flip", "nn.pad"}
    array = np.random.default_rng(1).standard_normal((1, 8, 5, 5)).astype("float16")
    assert error_of(by_cpu(found, [array]), by_cpu(mod, [array])) <= 1e-2


@pytest.mark.parametrize(
    ("image", "weight", "attrs", "part"),
    [
        # A step of the window.
        ((1, 64, 8, 8), (64, 32, 2, 2), {"strides": [2, 2]}, "conv2d"),
        ((1, 64, 4, 4, 4), (64, 32, 2, 2, 2), {"strides": [2, 2, 2]}, "conv3d"),
        # A generator's last one, of 3 channels at each of four pixels.
        ((1, 64, 16, 16), (64, 3, 4, 4), {"strides": [2, 2], "padding": [1, 1]}, "conv2d"),
        # Its first one, whose every pixel is of one sum.
        ((8, 64, 1, 1), (64, 16, 4, 4), {"strides": [1, 1]}, "matmul"),
    ],
)
def test_they_are_of_warpgroups(image: Any, weight: Any, attrs: Any, part: str) -> None:
    found = scheduled(transposed(image, weight, **attrs))
    (rule,) = (one.choice.rule for one in found if "conv" in one.name or "matmul" in one.name)
    assert any(part in one.name for one in found)
    assert rule == "warpgroups"
    for one in found:
        check(one)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [None, (1, 8, 1, 1), (1, 1, 8, 1)])
def test_sums_are_cast_before_they_are_moved(bias: tuple[int, ...] | None, groups: int) -> None:
    attrs = {"strides": [2, 2], "padding": [1, 1], "groups": groups, "out_dtype": "float32"}

    def build(x: Any, w: Any, *more: Any) -> Any:
        sums = op.nn.conv2d_transpose(x, w, **attrs)
        for one in more:
            sums = op.add(sums, op.astype(one, "float32"))
        return op.astype(sums, "float16")

    shapes = [(1, 16, 4, 4), (16, 8 // groups, 4, 4), *([] if bias is None else [bias])]
    mod = relax_module(build, *shapes)
    found = TransposedConvolutions()(mod)
    alive = relax.transform.DeadCodeElimination()(found)["main"]
    moved = [one for one in nodes_of(alive) if name_of(one) in ("reshape", "permute_dims")]
    of_sums = [one for one in moved if str(one.args[0].ty.dtype) == "float32"]
    # Eight channels' numbers are made those of four places each, eight rows' are not.
    is_before = bias in (None, (1, 8, 1, 1))
    assert max((prod(dims_of(one) or ()) for one in of_sums), default=0) <= 32 or not is_before
    require_same(found, mod, 2e-3)


@pytest.mark.parametrize(
    "moved",
    [
        # Channels change places, or are no longer the second dim; some are gone, or are pixels.
        lambda y: op.reshape(
            op.permute_dims(op.reshape(y, (1, 2, 4, 64)), [0, 2, 1, 3]), y.ty.shape
        ),
        lambda y: op.permute_dims(y, [0, 2, 1, 3]),
        lambda y: op.strided_slice(y, [1], [2], [6]),
        lambda y: op.reshape(y, (1, 2, 4, 64)),
    ],
)
@pytest.mark.parametrize("is_transposed", [True, False])
def test_what_is_added_behind_other_moves_stays_there(moved: Any, is_transposed: bool) -> None:
    how = {"strides": [2, 2] if is_transposed else [1, 1], "out_dtype": "float32"}
    name = "conv2d_transpose" if is_transposed else "conv2d"

    def build(x: Any, w: Any, bias: Any, z: Any) -> Any:
        y = emit(getattr(op.nn, name)(x, w, **how))
        y = emit(moved(y))
        part = op.strided_slice(bias, [1], [0], [y.ty.shape.values[1]])
        sums = op.astype(op.add(y, op.astype(part, "float32")), "float16")
        # Another one, which the pass has in its tables.
        other = emit(op.nn.conv2d_transpose(z, w, strides=[2, 2]))
        return op.concat([emit(op.reshape(one, [-1])) for one in (emit(sums), other)], axis=0)

    image = (1, 8, 4, 4) if is_transposed else (1, 8, 9, 9)
    mod = relax_module(build, image, (8, 8, 2, 2), (1, 64, 1, 1), (1, 8, 4, 4))
    require_same(TransposedConvolutions()(mod), mod, 2e-3)
