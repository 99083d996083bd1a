"""LinearLayout: laws by hypothesis, and one fact at a time."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.programs.strategies import bijections, linear_layouts
from tvm_layout_ext.errors import LayoutError
from tvm_layout_ext.layout import LinearLayout

OUTS = {"dim0": 8, "dim1": 4}
#: Of any type: it is given what no type allows.
SMALL: Any = LinearLayout.identity(2, "i", "o")
PAIR = LinearLayout.identity(2, "j", "p")


def table(layout: LinearLayout) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The whole map, by applying it to every index."""
    ranges = [range(size) for size in layout.in_sizes.values()]
    return {
        index: tuple(layout.apply(**dict(zip(layout.in_dims, index, strict=True))).values())
        for index in itertools.product(*ranges)
    }


@given(linear_layouts())
def test_injective_and_surjective_agree_with_enumeration(layout: LinearLayout) -> None:
    images = list(table(layout).values())
    assert layout.is_injective() == (len(set(images)) == len(images))
    assert layout.is_surjective() == (len(set(images)) == layout.total_out_size)
    assert layout.is_bijective() == (layout.is_injective() and layout.is_surjective())
    assert 1 << layout.rank == len(set(images))


@given(linear_layouts())
def test_free_variables_are_the_redundant_index_bits(layout: LinearLayout) -> None:
    masks = layout.free_variable_masks()
    kept = [
        image
        for index, image in table(layout).items()
        if not any(i & masks[name] for i, name in zip(index, layout.in_dims, strict=True))
    ]
    assert len(set(kept)) == len(kept) == len(set(table(layout).values()))


@given(bijections())
def test_inverse_undoes(layout: LinearLayout) -> None:
    there_and_back = layout.compose(layout.invert())
    assert there_and_back == LinearLayout.identity_of(layout.in_sizes)
    assert layout.invert().invert() == layout


@given(linear_layouts(OUTS), bijections(OUTS))
def test_invert_and_compose_finds_the_same_element(
    inner: LinearLayout, outer: LinearLayout
) -> None:
    found = inner.invert_and_compose(outer)
    assert found.compose(outer) == inner
    assert found.in_dims == inner.in_dims
    assert found.out_sizes == outer.in_sizes


@given(linear_layouts(OUTS), bijections(OUTS), st.lists(st.integers(0, 31), max_size=3))
def test_invert_and_compose_ignores_copies_in_outer(
    inner: LinearLayout, base: LinearLayout, copies: list[int]
) -> None:
    # A dim that both have is set aside, and then copies of its vectors may be needed.
    assume(not any(inner.basis(name) == base.basis(name) for name in inner.in_dims))
    copied = [(c & 7, c >> 3) for c in copies]
    outer = LinearLayout.from_bases({**dict(base.bases), "copy": copied}, base.out_sizes)
    found = inner.invert_and_compose(outer)
    assert found.compose(outer) == inner
    assert all(index[found.out_names.index("copy")] == 0 for index in table(found).values())


@given(bijections(OUTS))
def test_pseudo_inverse_is_a_right_inverse(base: LinearLayout) -> None:
    doubled = LinearLayout.zeros(2, "copy", "dim0") * base
    assert doubled.pseudo_invert().compose(doubled) == LinearLayout.identity_of(
        {"dim0": 8, "dim1": 4}
    )


def test_same_dims_stay_put_even_where_they_only_copy() -> None:
    bases = {"lane": [(1,)], "warp": [(0,), (0,)]}
    inner = LinearLayout.from_bases(bases, ["x"])
    outer = LinearLayout.from_bases({"lane": [(1,)], "warp": [(0,), (0,)]}, ["x"])
    assert inner.invert_and_compose(outer) == LinearLayout.identity_of({"lane": 2, "warp": 4})


def test_same_dims_move_where_sums_need_them() -> None:
    inner = LinearLayout.from_bases({"register": [(1,)], "lane": [(3,)]}, {"x": 4})
    outer = LinearLayout.from_bases({"register": [(1,)], "lane": [(2,)]}, {"x": 4})
    found = inner.invert_and_compose(outer)
    assert found.basis("lane") == ((1, 1),)
    assert found.compose(outer) == inner


@given(linear_layouts(), linear_layouts())
def test_product_puts_the_second_around_the_first(a: LinearLayout, b: LinearLayout) -> None:
    product = a * b
    scale = {name: a.out_sizes.get(name, 1) for name in product.out_names}
    for name in a.in_dims:
        for bit in range(len(product.basis(name))):
            inside = bit < len(a.basis(name))
            part, at, factor = (a, bit, dict.fromkeys(scale, 1)) if inside else (b, bit, scale)
            vector = part.basis(name)[at if inside else bit - len(a.basis(name))]
            image = dict(zip(part.out_names, vector, strict=True))
            expected = tuple(image.get(n, 0) * factor[n] for n in product.out_names)
            assert product.basis(name)[bit] == expected


@given(bijections(OUTS), bijections(OUTS), bijections(OUTS))
def test_composition_is_associative(a: LinearLayout, b: LinearLayout, c: LinearLayout) -> None:
    back_b, back_c = b.invert().reshape_outs(OUTS), c.invert().reshape_outs(OUTS)
    assert a.compose(back_b).compose(back_c) == a.compose(back_b.compose(back_c))


@given(linear_layouts())
def test_reshapes_keep_the_flat_map(layout: LinearLayout) -> None:
    flat = layout.flatten_ins("i").flatten_outs("o")
    assert flat.reshape_ins(layout.in_sizes).reshape_outs(layout.out_sizes) == layout
    assert flat.columns == layout.columns


@given(linear_layouts())
def test_transposes_undo(layout: LinearLayout) -> None:
    turned = layout.transpose_ins(layout.in_dims[::-1]).transpose_outs(layout.out_names[::-1])
    assert turned.transpose_ins(layout.in_dims).transpose_outs(layout.out_names) == layout


def test_sublayout_holds_the_rest_at_zero() -> None:
    layout = LinearLayout.from_bases({"a": [(1, 1)], "b": [(0, 2), (1, 0)]}, ["x", "y"])
    assert layout.sublayout(["b"], ["y"]).basis("b") == ((2,), (0,))


def test_strided_leaves_gaps() -> None:
    layout = LinearLayout.strided(4, 2, "i", "o")
    assert [layout.apply(i=i)["o"] for i in range(4)] == [0, 2, 4, 6]
    assert not layout.is_surjective()


def test_zeros_broadcast() -> None:
    assert LinearLayout.zeros(8, "lane", "x").basis("lane") == ((0,), (0,), (0,))


def test_out_sizes_are_inferred_from_the_vectors() -> None:
    layout = LinearLayout.from_bases({"i": [(1, 0), (2, 1)]}, ["x", "y"], surjective=False)
    assert layout.out_sizes == {"x": 4, "y": 2}


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LinearLayout.identity(3, "i", "o"), "must be a power of two"),
        (lambda: LinearLayout.from_bases({"i": [(2,)]}, {"o": 4}), r"reaches only 2\^1"),
        (lambda: LinearLayout.from_bases({"i": [(4,)]}, {"o": 4}), r"must lie in \[0, 4\)"),
        (lambda: LinearLayout.from_bases({"i": [(-1,)]}, ["o"]), "must lie in"),
        (lambda: LinearLayout.from_bases({"i": [(1, 0)]}, {"o": 2}), "has 2 numbers"),
        (lambda: LinearLayout.from_bases({"i": []}, {"o": 6}), "size 6"),
        (lambda: LinearLayout.identity(2, 1, "o"), "dim name 1 is not an identifier"),
        (lambda: LinearLayout.from_bases({"in": []}, {"o": 1}), "not an identifier"),
        (lambda: LinearLayout.zeros(2, "i", "o").invert(), "Only a bijection"),
        (lambda: LinearLayout.strided(2, 2, "i", "o").pseudo_invert(), "not surjective"),
        (lambda: SMALL.apply(j=0), r"takes indices of \['i'\]"),
        (lambda: SMALL.apply(i=2), r"not in \[0, 2\)"),
        (lambda: SMALL.apply_arrays(i=[2]), "not in"),
        (lambda: SMALL.reshape_ins({"i": 4}), "multiply to 4"),
        (lambda: SMALL.transpose_outs(["o", "o"]), "no permutation"),
        (lambda: SMALL.sublayout(["j"], []), "no input dim 'j'"),
        (lambda: SMALL.compose(SMALL), "The outer layout takes"),
        (
            lambda: LinearLayout.identity(4, "i", "o").compose(LinearLayout.identity(2, "o", "p")),
            "takes only 2",
        ),
        (lambda: SMALL.rename_outs({"q": "p"}), "no output dim 'q'"),
    ],
)
def test_misuse_is_one_sentence(make: object, sentence: str) -> None:
    with pytest.raises(LayoutError, match=sentence):
        make()  # type: ignore[operator]


def test_integers_of_numpy_become_those_of_python() -> None:
    """A size of NumPy's had no bit_length, and its text did not parse back."""
    made = [
        LinearLayout.from_bases({"i": [(np.int32(1),), (np.int64(2),)]}, ["o"]),
        LinearLayout.from_bases({"i": [np.array([1]), np.array([2])]}, {"o": np.int64(4)}),
        LinearLayout.identity(np.int64(4), "i", "o"),  # type: ignore[arg-type]
        LinearLayout((("i", ((np.int8(1),), (np.int8(2),))),), (("o", np.int8(4)),)),  # type: ignore[arg-type]
    ]
    assert {repr(layout) for layout in made} == {"Linear({i: [[1], [2]]}, {o: 4})"}
    assert len(set(made)) == 1


def test_lists_given_to_the_class_itself_become_tuples() -> None:
    layout = LinearLayout([["i", [[1]]]], [["o", 2]])  # type: ignore[arg-type, list-item]
    assert hash(layout) == hash(SMALL)
