"""Grouped convolutions on tensor cores: groups are merged, and are a batch of products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import s_tir, te, tirx
from tvm.relax import op

import tvm_layout_ext as tlx
from tests.models.cpu import require_same
from tests.models.running import TARGET, Scheduled, array_of, check, fused, only, scheduled
from tests.models.test_convolutions import convolution
from tests.programs.relaxed import relax_module
from tvm_layout_ext.models.convolutions import wide_groups
from tvm_layout_ext.models.convolutions.groups_as_batch import groups_as_batch
from tvm_layout_ext.models.convolutions.wide_groups import WideGroups, merged_groups
from tvm_layout_ext.models.tf32 import KINDS
from tvm_layout_ext.transform.hopper.windows import read_window
from tvm_layout_ext.tune.space.functions import blocks_of

#: Groups, channels and results of each, and the rule that takes them on ``sm_90a``.
GROUPS = [
    (32, 4, 4, "warpgroups"),
    (3, 48, 48, "warpgroups"),
    (7, 16, 16, "warpgroups"),
    (2, 112, 112, "warpgroups"),
    (2, 64, 40, "warpgroups"),
    (4, 24, 56, "warpgroups"),
    # By wgmma where a tile has a halo, else by mma.sync.
    (2, 8, 16, ""),
]


def grouped(
    groups: int, channels: int, results: int, sides: Any = (2, 7, 9), **attrs: Any
) -> tvm.IRModule:
    number, *pixels = sides
    window = attrs.pop("window", (3, 3))
    image = (number, groups * channels, *pixels)
    return convolution(
        image, (groups * results, channels, *window), groups=groups, **{"padding": 1, **attrs}
    )


def blocks_by_name(func: tirx.PrimFunc) -> list[tuple[str, Any]]:
    return [(str(one.name_hint), one) for _, one in blocks_of(func)]


def convolved(mod: tvm.IRModule) -> Scheduled:
    return only(mod, "conv2d")


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize(
    "attrs", [{}, {"strides": 2}, {"padding": [1, 0, 2, 1]}, {"dilation": 2, "padding": 2}]
)
@pytest.mark.parametrize(("groups", "channels", "results", "rule"), GROUPS)
def test_a_grouped_convolution_is_right(
    groups: int, channels: int, results: int, rule: str, attrs: Any
) -> None:
    one = convolved(grouped(groups, channels, results, **attrs))
    check(one, rule)


@pytest.mark.costly
@pytest.mark.parametrize(("groups", "channels", "results"), [(2, 64, 64), (3, 48, 40)])
def test_groups_of_pixels_alone_are_boxes(groups: int, channels: int, results: int) -> None:
    """Their rows are no windows, and a group's channels and results end within a tile."""
    one = convolved(grouped(groups, channels, results, window=(1, 1), padding=0))
    assert one.choice.rule == "warpgroups", one.choice.text
    lowered = tlx.lower(one.after.with_attr("global_symbol", "main"), target=TARGET)
    assert str(lowered).count("cuTensorMapEncodeTiled") == 3  # Of the result, too.
    check(one)


@pytest.mark.costly
@pytest.mark.parametrize(("groups", "channels", "results"), [(32, 4, 4), (2, 112, 112)])
def test_older_gpus_multiply_groups_by_mma(groups: int, channels: int, results: int) -> None:
    mod = grouped(groups, channels, results)
    target = tlx.cuda_target("sm_80")
    with target:
        schedule = tlx.DefaultSchedule()
        schedule(tlx.lower_relax(mod, target))
    assert "tensor cores" in {one.rule for one in schedule.choices if "conv2d" in one.name}


def test_a_batch_may_have_any_size() -> None:
    one = convolved(grouped(4, 16, 16, ("n", 6, 6)))
    assert one.choice.rule in ("warpgroups", "tensor cores"), one.choice.text
    check(one)


@given(
    st.integers(2, 6),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 3),
    st.sampled_from([1, 2]),
)
def test_merged_groups_give_the_same(
    groups: int, channels: int, results: int, window: int, steps: int
) -> None:
    mod = convolution(
        (1, groups * channels, 6, 5),
        (groups * results, channels, window, window),
        "float32",
        groups=groups,
        strides=steps,
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(wide_groups, "multiplies", lambda _: True)
        after = WideGroups(tf32=KINDS)(mod)
    merged = merged_groups(groups, channels, results)
    taken = merged > 1 and (channels, results) != (1, 1)
    assert ("where" in str(after)) == taken
    require_same(after, mod, 1e-5)


@pytest.mark.parametrize(
    ("image", "weight", "attrs"),
    [
        ((1, 16, 5, 5), (16, 1, 3, 3), {"groups": 16}),
        ((1, 16, 5, 5), (16, 16, 3, 3), {}),
        ((1, 128, 5, 5), (128, 64, 3, 3), {"groups": 2}),
        ((1, 15, 5, 5), (15, 5, 3, 3), {"groups": 3}),
    ],
)
def test_others_stay_as_they_are(image: Any, weight: Any, attrs: Any) -> None:
    mod = convolution(image, weight, **attrs)
    tvm.ir.assert_structural_equal(WideGroups()(mod), mod)
    wide = convolution(image, weight, "float32", **attrs)
    tvm.ir.assert_structural_equal(WideGroups()(wide), wide)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("arch", "sides", "is_merged", "multiply"),
    [
        ("sm_90a", (2, 9, 9), True, True),
        ("sm_80", ("n", 9, 9), True, True),
        ("sm_75", (2, 9, 9), False, False),
        ("sm_90a", (2, "h", "w"), False, False),
        # Each group is a member of a batch of any size.
        ("sm_80", ("n", "h", "w"), False, True),
    ],
)
def test_groups_are_merged_for_tensor_cores_alone(
    arch: str, sides: Any, is_merged: bool, multiply: bool
) -> None:
    """Threads would multiply the zeros between merged groups, 16 times as many terms here."""
    mod = grouped(32, 4, 4, sides, strides=2)
    target, schedule = tlx.cuda_target(arch), tlx.DefaultSchedule()
    with target:
        assert ("where" in str(WideGroups()(mod))) == is_merged
        schedule(tlx.lower_relax(mod, target))
    (rule,) = (one.rule for one in schedule.choices if "conv2d" in one.name)
    assert (rule in ("warpgroups", "tensor cores")) == multiply


def test_operands_of_two_types_are_no_product_of_tensor_cores() -> None:
    def build(x: Any, w: Any) -> Any:
        return op.nn.conv2d(x, w, groups=4, out_dtype="float32")

    mod = relax_module(build, (1, 16, 6, 6), ((16, 4, 3, 3), "bfloat16"))
    tvm.ir.assert_structural_equal(WideGroups()(mod), mod)


def test_groups_of_float32_keep_their_layout() -> None:
    mod = convolution((1, 16, 6, 6), (16, 4, 3, 3), "float32", groups=4, padding=1)
    (one,) = scheduled(mod)
    assert one.choice.rule in ("rows", "blocks"), one.choice.text
    check(one)


@pytest.mark.costly
@pytest.mark.parametrize("attrs", [{}, {"window": (1, 1), "padding": 0}])
def test_what_is_not_finite_stays_in_its_group(attrs: Any) -> None:
    """The last box of 64 channels ends with the group, not within the next one's channels."""
    one = convolved(grouped(2, 112, 112, (1, 5, 5), **attrs))
    rng = np.random.default_rng(0)
    image, *others, _ = (array_of(param, rng) for param in one.after.params)
    poisoned = image.copy()
    poisoned[..., 112:] = np.nan
    func = one.after.with_attr("global_symbol", "main")
    first, second = (
        next(iter(tlx.simulate(func, given, *others, None, progress=False).outputs.values()))
        for given in (image, poisoned)
    )
    assert np.array_equal(first[..., :112], second[..., :112])
    assert not np.array_equal(first[..., 112:], second[..., 112:])


def test_what_reads_the_sums_twice_is_split_once() -> None:
    """As ``x * sigmoid(x)`` does: the product is reached from both."""

    def build(x: Any, w: Any) -> Any:
        return op.nn.silu(op.nn.conv2d(x, w, padding=1, groups=4))

    one = convolved(relax_module(build, (1, 96, 5, 5), (224, 24, 3, 3)))
    check(one, "warpgroups")


def test_sums_that_leave_keep_their_dims() -> None:
    x, w = (te.placeholder(n, "float16", "XW"[i]) for i, n in enumerate(((1, 5, 5, 48), (8, 24))))
    k = te.reduce_axis((0, 24), "k")

    def product(n: Any, i: Any, j: Any, f: Any) -> Any:
        left = x[n, i, j, f // 4 * 24 + k].astype("float32")
        return te.sum(left * w[f, k].astype("float32"), axis=k)

    sums = te.compute((1, 5, 5, 8), product, name="sums")
    more = te.compute(sums.shape, lambda *at: sums[at] + 1.0, name="more")
    func = te.create_prim_func([x, w, sums, more])
    split = groups_as_batch(func)
    assert [list(map(int, one.shape)) for one in split.params[2:]] == [[1, 5, 5, 8]] * 2
    assert len(dict(blocks_by_name(split))["sums"].iter_vars) == 6


def product_of_groups(
    channels: int, behind: Any = None, first: int = 0, groups: int = 2
) -> tirx.PrimFunc:
    """Groups of 48 channels and results, from the first one of an image of so many channels."""
    x = te.placeholder((1, 6, 7, channels), "float16", "X")
    w = te.placeholder((48 * groups, 3, 3, 48), "float16", "W")
    axes = [te.reduce_axis((0, extent), name) for extent, name in ((3, "r"), (3, "s"), (48, "k"))]

    def term(n: Any, i: Any, j: Any, f: Any) -> Any:
        r, s, k = axes
        left = x[n, i + r, j + s, f // 48 * 48 + k + first].astype("float32")
        return te.sum(left * w[f, r, s, k].astype("float32"), axis=axes)

    sums = te.compute((1, 4, 5, 48 * groups), term, name="sums")
    out = te.compute(sums.shape, lambda *at: sums[at].astype("float16"), name="cast")
    return te.create_prim_func([x, w, out if behind is None else behind(out)])


@pytest.mark.costly
@pytest.mark.parametrize(
    ("channels", "first", "groups", "rule"),
    [
        (144, 0, 2, "warpgroups"),
        (144, 48, 2, "warpgroups"),
        (104, 0, 2, "tensor cores"),
        (104, 8, 2, "tensor cores"),
        (104, 0, 1, "warpgroups"),
        (104, 8, 1, "tensor cores"),
    ],
)
def test_an_image_may_have_more_channels_than_the_groups(
    channels: int, first: int, groups: int, rule: str
) -> None:
    """104 of them are not counted by groups of 48, with which boxes of 64 would not end.

    Weights are zero there, and zero times what is not finite is NaN.
    """
    func = product_of_groups(channels, first=first, groups=groups)
    (one,) = scheduled(tvm.IRModule({"main": func}))
    assert one.choice.rule == rule, one.choice.text
    image = array_of(func.params[0], np.random.default_rng(0))
    image[..., :first] = image[..., first + groups * 48 :] = np.inf
    check(one, X=image)
    image[..., first + groups * 48 - 48 :] = np.inf
    report = check(one, X=image)
    (out,) = report.outputs.values()
    assert np.isfinite(out[..., : groups * 48 - 48]).all()


def test_a_bound_that_the_group_moves_is_refused_in_a_sentence() -> None:
    group, row, term = (tirx.Var(name, "int32") for name in ("g", "m", "k"))
    image = tirx.decl_buffer((42, 120), "float16", "X", layout=None)
    load = tirx.BufferLoad(image, [row, group * 48 + term])
    with pytest.raises(tlx.ScheduleError, match="which is no bound of an index"):
        read_window(load, [term + group * 48 < 120], {row: 42, term: 48}, "B")


def turned(out: Any) -> Any:
    return te.compute((1, 96, 4, 5), lambda n, f, i, j: out[n, i, j, f], name="last")


def sliced(out: Any) -> Any:
    return te.compute((1, 4, 5, 40), lambda n, i, j, f: out[n, i, j, f + 16], name="last")


@pytest.mark.parametrize("behind", [turned, sliced])
def test_readers_of_other_places_are_not_split(behind: Any) -> None:
    split = groups_as_batch(product_of_groups(96, behind))
    counts = {name: len(block.iter_vars) for name, block in blocks_by_name(split)}
    assert counts == {"sums": 8, "cast": 5, "last": 4}


def test_the_iterator_is_split_that_counts_the_results() -> None:
    sch = s_tir.Schedule(product_of_groups(96))
    own = [tirx.Var(f"i{at}", "int32") for at in range(7)]
    order = [own[0], own[3], own[1], own[2], *own[4:]]
    sch.transform_block_layout(sch.get_sblock("sums"), tirx.IndexMap(own, order, None))
    sums = dict(blocks_by_name(groups_as_batch(sch.mod["main"])))["sums"]
    assert [int(one.dom.extent) for one in sums.iter_vars] == [1, 2, 48, 4, 5, 3, 3, 48]


def test_functions_without_groups_stay_as_they_are() -> None:
    mod = fused(convolution((1, 64, 6, 6), (64, 64, 3, 3), padding=1))
    for gv, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            assert groups_as_batch(mod[gv]).same_as(func)
