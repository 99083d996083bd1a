"""What is added to a part of a tensor in place, and scores to which it is added."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tests.models.cpu import require_same
from tests.models.running import check, scheduled
from tests.programs.relaxed import relax_module
from tvm_layout_ext.models.moves.scatters import scatters_as_sums
from tvm_layout_ext.models.relax_values import name_of, nodes_of

#: The end of a slice that torch writes where it goes to the last element.
ALL = 2**63 - 1


def added(x: Any, y: Any, ends: dict[int, int]) -> Any:
    """``x[..., 1:, 1:] += y`` along axes of some length, as ``torch.export`` writes it."""
    parts = [x]
    for axis in ends:
        parts.append(op.strided_slice(parts[-1], [axis], [1], [ALL], [1]))
    value = op.add(parts.pop(), y)
    for axis, part in zip(reversed(ends), reversed(parts), strict=True):
        value = op.slice_scatter(part, value, 1, ends[axis], 1, axis)
    return value


def scatters(mod: tvm.IRModule) -> int:
    return sum(name_of(one) == "slice_scatter" for one in nodes_of(mod["main"]))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (1, 0)])
def test_a_part_that_is_added_to_is_a_sum(axes: tuple[int, ...]) -> None:
    shape = tuple(n - (i in axes) for i, n in enumerate((4, 6)))
    ends = {axis: (4, 6)[axis] for axis in axes}
    mod = relax_module(lambda x, y: added(x, y, ends), (4, 6), shape, dtype="float32")
    found = scatters_as_sums(mod)
    assert scatters(mod) == len(axes)
    assert not scatters(found)
    assert sum(name_of(one) == "nn.pad" for one in nodes_of(found["main"])) == 1
    require_same(found, mod, 0)


def test_a_part_that_is_put_back_is_what_it_was() -> None:
    def build(x: Any) -> Any:
        part = op.strided_slice(x, [1], [2], [5], [1])
        return op.slice_scatter(x, part, 2, 5, 1, 1)

    found = scatters_as_sums(relax_module(build, (4, 6)))
    assert not any(isinstance(one, relax.Call) for one in nodes_of(found["main"]))


@pytest.mark.parametrize("what", ["product", "other part", "other tensor", "steps", "broadcast"])
def test_others_stay(what: str) -> None:
    def build(x: Any, y: Any, z: Any) -> Any:
        step, begin = 1 + (what == "steps"), 2 - (what == "other part")
        part = op.strided_slice(z if what == "other tensor" else x, [1], [begin], [6], [step])
        part = op.strided_slice(part, [1], [0], [1 + (what == "steps")])
        part = op.strided_slice(x, [1], [begin], [begin + 4], [1]) if what == "product" else part
        other = op.strided_slice(y, [0], [0], [1]) if what == "broadcast" else y
        if what == "broadcast":
            part = op.strided_slice(x, [1], [2], [6], [1])
            return op.slice_scatter(x, op.add(part, other), 2, 6, 1, 1)
        if what == "product":
            return op.slice_scatter(x, op.multiply(part, y), 1, 5, 1, 1)
        width = 1 + (what == "steps")
        add = op.add(part, op.strided_slice(y, [1], [0], [width]))
        return op.slice_scatter(x, add, 2, 2 + step * width, step, 1)

    mod = relax_module(build, (4, 6), (4, 4), (4, 6))
    assert scatters(scatters_as_sums(mod)) == 1


def positions(image: tuple[int, ...], keys: tuple[int, ...], heads: int) -> Any:
    """Attention as MViT has it, of a token before an image and its positions."""
    (h, w), (a, b) = image, keys
    rows, columns = h * w + 1, a * b + 1

    def build(q: Any, k: Any, v: Any, high: Any, wide: Any) -> Any:
        scores = op.matmul(q, op.permute_dims(k, [0, 1, 3, 2]), out_dtype="float32")
        scores = op.astype(op.multiply(scores, relax.const(0.125, "float32")), "float16")
        high = op.reshape(op.permute_dims(high, [1, 0, 2, 3]), (1, heads, h, w, a, 1))
        wide = op.reshape(op.permute_dims(wide, [1, 2, 0, 3]), (1, heads, h, w, 1, b))
        both = op.reshape(op.add(high, wide), (1, heads, rows - 1, columns - 1))
        weights = op.nn.softmax(added(scores, both, {2: rows, 3: columns}), -1)
        return op.astype(op.matmul(weights, v, out_dtype="float32"), "float16")

    sides = [(1, heads, n, 64) for n in (rows, columns, columns)]
    return relax_module(build, *sides, (h, heads, w, a), (w, heads, h, b), dtype="float16")


@pytest.mark.parametrize(
    ("image", "keys", "names"),
    [
        # Terms of rows and of columns are a third of their sums, and are added up in the kernel.
        ((6, 6), (6, 6), ["attention"]),
        # They are more than the half.
        ((6, 6), (3, 3), ["attention", "pad"]),
    ],
)
def test_scores_with_positions_are_attention(image: Any, keys: Any, names: list[str]) -> None:
    found = sorted(scheduled(positions(image, keys, 2)), key=lambda one: one.name)
    assert [part in one.name for part, one in zip(names, found, strict=True)] == [True] * len(names)
    assert found[0].choice.rule == "attention"
    for one in found:
        check(one)
