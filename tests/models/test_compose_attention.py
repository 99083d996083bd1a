"""Attention as PyTorch's decompositions leave it gives the numbers that they give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op

from benchmarks.relax_numbers import error_of
from tests.models import running
from tests.models.cpu import by_cpu
from tests.models.running import TARGET, check, fused, scheduled
from tests.programs.relaxed import emit, relax_module
from tests.sampling import beside
from tvm_layout_ext import simulate
from tvm_layout_ext.analysis.attention import read_attention
from tvm_layout_ext.models.attention import gather
from tvm_layout_ext.models.attention.compose import ComposeAttention

BATCH, HEADS, HEAD = 2, 2, 64
#: What is added to scores of keys that are seen, and of others.
_SHOWN = [relax.const(one, "float32") for one in (0.0, float("-inf"))]
#: A mask of rows and keys.
WIDE = (BATCH, 1, 40, 40)


@pytest.fixture(autouse=True)
def _few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "SIZE", BATCH)


def decomposed(
    rows: int,
    keys: int,
    mask: Any,
    dtype: str = "float16",
    wide: bool = False,
    batch: Any = BATCH,
    more: Sequence[Any] = (),
    heads: Callable[[], list[Any]] | None = None,
) -> tvm.IRModule:
    """Products and a safe softmax, as ``run_decompositions`` writes them; mask adds to scores.

    Products are ``wide`` as ``ToMixedPrecision`` leaves them by default.
    """
    flat = batch * HEADS
    root = op.astype(relax.const(HEAD**-0.25, "float32"), dtype)

    def product(*operands: Any) -> Any:
        if not wide:
            return emit(op.matmul(*operands))
        return emit(op.astype(emit(op.matmul(*operands, out_dtype="float32")), dtype))

    def build(*given: Any) -> Any:
        q, k, v = heads() if heads else given[:3]
        scaled = emit(op.multiply(q, emit(root)))
        turned = emit(op.permute_dims(k, [0, 1, 3, 2]))
        turned = emit(op.multiply(turned, emit(root)))
        left = emit(op.reshape(scaled, (flat, rows, HEAD)))
        right = emit(op.reshape(turned, (flat, HEAD, keys)))
        scores = emit(op.reshape(product(left, right), (batch, HEADS, rows, keys)))
        scores = emit(op.astype(scores, "float32"))
        if mask is not None:
            scores = emit(op.add(scores, emit(mask(rows, keys))))
        weights = emit(op.nn.softmax(scores, -1))
        seen = emit(op.logical_not(emit(op.equal(scores, relax.const(float("-inf"), "float32")))))
        seen = emit(op.max(emit(op.astype(seen, "int8")), -1, keepdims=True))
        empty = emit(op.logical_not(emit(op.astype(seen, "bool"))))
        zeros = emit(op.full_like(weights, relax.const(0.0, "float32")))
        weights = emit(op.where(empty, zeros, weights))
        weights = emit(op.astype(emit(op.reshape(weights, (flat, rows, keys))), dtype))
        values = emit(op.reshape(emit(op.broadcast_to(v, v.ty.shape)), (flat, keys, HEAD)))
        if heads:  # Mixed precision casts right before a product.
            values = emit(op.astype(values, dtype))
        mean = product(weights, values)
        return op.reshape(mean, (batch, HEADS, rows, HEAD))

    qkv = [] if heads else [(batch, HEADS, length, HEAD) for length in (rows, keys, keys)]
    return relax_module(build, *qkv, *more, dtype=dtype)


def causal(offset: int) -> Any:
    """A mask of keys behind a row's place."""

    def mask(rows: int, keys: int) -> Any:
        places = emit(op.expand_dims(emit(op.arange(0, keys, 1, "int64")), -2))
        starts = emit(op.expand_dims(emit(op.arange(0, rows, 1, "int64")), -1))
        seen = emit(op.less_equal(emit(op.subtract(places, starts)), relax.const(offset, "int64")))
        return op.where(seen, *_SHOWN)

    return mask


def window(reach: int, ahead: int = 0) -> Any:
    """A mask of keys farther from a row's place than a sliding window reaches."""

    def mask(rows: int, keys: int) -> Any:
        places = emit(op.expand_dims(emit(op.arange(ahead, keys + ahead, 1, "int64")), -2))
        starts = emit(op.expand_dims(emit(op.arange(0, rows, 1, "int64")), -1))
        away = emit(op.abs(emit(op.subtract(places, starts))))
        seen = emit(op.less_equal(away, relax.const(reach, "int64")))
        return op.where(seen, *_SHOWN)

    return mask


def sliding(reach: int) -> Any:
    """A causal mask of so many keys, by two comparisons."""

    def mask(rows: int, keys: int) -> Any:
        key = emit(op.expand_dims(emit(op.arange(0, keys, 1, "int64")), -2))
        row = emit(op.expand_dims(emit(op.arange(0, rows, 1, "int64")), -1))
        near = emit(op.greater(key, emit(op.subtract(row, relax.const(reach, "int64")))))
        seen = emit(op.bitwise_and(near, emit(op.greater_equal(row, key))))
        return op.where(seen, *_SHOWN)

    return mask


def part(value: Any, begin: int, size: Any) -> Any:
    """A part of a row, as torch's slices are imported."""
    if isinstance(size, int) and isinstance(value.ty.shape.values[-1], tirx.IntImm):
        return emit(op.strided_slice(value, [-1], [begin], [begin + size]))
    return emit(op.take(value, emit(op.arange(begin, begin + size, 1, "int64")), 1))


def packed(batch: Any) -> Any:
    """A causal mask as ``transformers`` makes it, of whole sequences beside one another."""

    def mask(rows: int, keys: int) -> Any:
        places = emit(op.expand_dims(emit(op.arange(0, keys, 1, "int64")), 0))
        wide = emit(op.broadcast_to(places, (batch, keys)))
        first = part(wide, 0, 1)
        before = emit(op.subtract(first, relax.const(1, "int64")))
        joined = emit(op.concat([before, wide], -1))
        left, right = (part(joined, at, keys) for at in (0, 1))
        ends = emit(op.not_equal(emit(op.subtract(right, left)), relax.const(1, "int64")))
        documents = emit(op.cumsum(ends, -1))
        batches = emit(op.reshape(emit(op.arange(0, batch, 1, "int64")), (batch, 1, 1, 1)))
        row, key = (emit(op.reshape(places, one)) for one in ((1, 1, rows, 1), (1, 1, 1, keys)))

        def at(value: Any, place: Any) -> Any:
            return emit(op.index_tensor(value, [batches, place]))

        same = emit(op.equal(at(documents, row), at(documents, key)))
        seen = emit(op.less_equal(at(wide, key), at(wide, row)))
        return op.where(emit(op.bitwise_and(same, seen)), *_SHOWN)

    return mask


def everything(batch: Any) -> Any:
    """A mask of a bidirectional model that is given none, as ``transformers`` makes it."""

    def mask(rows: int, keys: int) -> Any:
        places = emit(op.reshape(emit(op.arange(0, rows, 1, "int64")), (1, 1, rows, 1)))
        seen = emit(op.greater_equal(places, relax.const(0, "int64")))
        wide = emit(op.broadcast_to(seen, (batch, 1, rows, keys)))
        return op.where(wide, *_SHOWN)

    return mask


@pytest.mark.costly
@pytest.mark.parametrize(
    ("rows", "keys", "mask", "wide", "batch"),
    [
        (40, 40, packed, True, "n"),
        (24, 40, causal(16), False, BATCH),
        beside(40, 40, None, True, BATCH),
        beside(40, 40, causal(0), False, BATCH),
        beside(24, 40, causal(16), True, BATCH),
        beside(24, 40, causal(0), False, "n"),
        beside(40, 40, packed, True, BATCH),
        beside(24, 40, everything, False, BATCH),
        beside(40, 40, everything, True, "n"),
        beside(40, 40, window(5), False, BATCH),
        beside(24, 40, window(3, -12), False, BATCH),
    ],
)
def test_products_and_a_safe_softmax_are_attention(
    rows: int, keys: int, mask: Any, wide: bool, batch: Any
) -> None:
    size = tirx.Var(batch, "int64") if isinstance(batch, str) else batch
    is_plain = mask is not packed
    if mask in (packed, everything):
        mask = mask(size)
    mod = decomposed(rows, keys, mask, wide=wide, batch=size)
    lowered = fused(mod)
    rng = np.random.default_rng(0)
    shapes = [(BATCH, HEADS, length, HEAD) for length in (rows, keys, keys)]
    arrays = [rng.standard_normal(shape).astype("float16") for shape in shapes]
    # TVM's CPU code has no sums of booleans; of a sequence alone it is a causal mask.
    same = mod if is_plain else decomposed(rows, keys, causal(0))
    want = by_cpu(same, arrays)
    assert error_of(by_cpu(lowered, arrays), want) <= 1e-2
    functions = scheduled(lowered)
    (attention,) = (one for one in functions if one.choice.rule == "attention")
    # None reads a mask.
    assert sum(hasattr(one, "shape") for one in attention.after.params) == 4
    for one in functions:
        check(one)


@pytest.mark.costly
@pytest.mark.parametrize("mask", [packed(BATCH), causal(0), sliding(9), sliding(200)])
def test_masks_of_any_length_are_conditions(mask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no kernel computes one, or reads it."""
    monkeypatch.setattr(running, "SIZE", length := 150)
    rows = tirx.Var("n", "int64")
    functions = scheduled(decomposed(rows, rows, mask))
    (attention,) = (one for one in functions if one.choice.rule == "attention")
    assert sum(hasattr(one, "shape") for one in attention.after.params) == 4
    assert len(functions) == 1
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((BATCH, HEADS, length, HEAD)).astype("float16") for _ in "qkv"]
    # TVM's CPU code has no sums of booleans.
    is_packed = mask.__qualname__.startswith("packed")
    same = decomposed(length, length, causal(0) if is_packed else mask)
    lowered = fused(decomposed(rows, rows, mask))
    assert error_of(by_cpu(lowered, arrays), by_cpu(same, arrays)) <= 1e-2
    check(attention)


@pytest.mark.parametrize(
    "mask",
    [
        # A key in the row's own place is hidden, so that the first row sees none.
        lambda rows, keys: shown(op.less, keys, rows),
        lambda rows, keys: shown(op.less_equal, keys, rows, 2),
        lambda rows, keys: shown(op.not_equal, keys, rows),
    ],
)
def test_other_masks_of_any_length_are_tensors(mask: Any) -> None:
    rows = tirx.Var("n", "int64")
    found = scheduled(decomposed(rows, rows, mask))
    (attention,) = (one for one in found if one.choice.rule == "attention")
    assert sum(hasattr(one, "shape") for one in attention.after.params) == 5


def shown(compare: Any, keys: Any, rows: Any, step: int = 1) -> Any:
    """A mask of a comparison of keys and rows, which count by a step."""
    key = emit(op.expand_dims(emit(op.arange(0, keys, 1, "int64")), -2))
    row = emit(op.arange(0, rows, 1, "int64"))
    row = emit(op.multiply(row, relax.const(step, "int64")))
    return op.where(emit(compare(key, emit(op.expand_dims(row, -1)))), *_SHOWN)


def test_heads_of_keys_that_are_repeated_are_stored_once() -> None:
    # As transformers repeats them, K after a rotation in float32.
    queries, keys = (1, 4, 40, HEAD), (1, 2, 40, HEAD)

    def repeated(one: Any) -> Any:
        return op.reshape(op.broadcast_to(op.expand_dims(one, [2]), (1, 2, 2, 40, HEAD)), queries)

    def build(q: Any, k: Any, v: Any) -> Any:
        turned = op.permute_dims(repeated(op.sin(op.astype(k, "float32"))), [0, 1, 3, 2])
        narrow = op.multiply(q, relax.const(HEAD**-0.5, "float16"))
        scores = op.astype(op.matmul(narrow, op.astype(turned, "float16")), "float32")
        return op.matmul(op.astype(op.nn.softmax(scores, -1), "float16"), repeated(v))

    functions = scheduled(fused(relax_module(build, queries, keys, keys)))
    (rotated,) = (one for one in functions if "sin" in one.name)
    assert "attention" in {one.name for one in functions}
    assert len(functions) <= 4
    assert [int(extent) for extent in rotated.after.params[-1].shape] == [1, 2, 40, HEAD]
    for one in functions:
        check(one)


def test_other_types_stay_products() -> None:
    functions = fused(decomposed(40, 40, None, "float32")).functions
    assert not any(gv.name_hint.startswith("attention") for gv in functions)


@pytest.mark.costly
@pytest.mark.parametrize("batch", [BATCH, "n"])
def test_a_mask_that_is_given_is_added_to_scores(batch: Any) -> None:
    """As that of padding is, which hides keys of one sequence and not of another."""
    size = tirx.Var(batch, "int64") if isinstance(batch, str) else batch
    given = relax.Var("mask", relax.TensorType((size, 1, 1, 40), "bool"))

    def padding(rows: int, keys: int) -> Any:
        wide = emit(op.broadcast_to(given, (size, 1, rows, keys)))
        return op.where(wide, *_SHOWN)

    mod = decomposed(40, 40, padding, batch=size, more=[given])
    lowered = fused(mod)
    rng = np.random.default_rng(0)
    shape = BATCH, HEADS, 40, HEAD
    arrays: list[Any] = [rng.standard_normal(shape).astype("float16") for _ in range(3)]
    arrays.append(np.arange(40).reshape(1, 1, 1, 40) < np.array([40, 23]).reshape(2, 1, 1, 1))
    want = by_cpu(mod, arrays)
    assert error_of(by_cpu(lowered, arrays), want) <= 1e-2
    assert {one.choice.rule for one in scheduled(lowered)} == {"attention", "blocks"}


@pytest.mark.costly
@pytest.mark.parametrize("offset", [3, -1])
def test_rows_of_which_all_keys_are_hidden_are_zero(offset: int) -> None:
    """The first row sees no key by an offset of -1; PyTorch's softmax is zero there."""
    # 128 keys fill the tile: those behind the last one would count as seen.
    mod = decomposed(128, 128, causal(offset))
    (one,) = (one for one in scheduled(fused(mod)) if one.choice.rule == "attention")
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((BATCH, HEADS, 128, HEAD)).astype("float16") for _ in range(3)]
    (want,) = by_cpu(mod, arrays)
    mask = np.where(np.tri(128, 128, offset, dtype=bool), 0, -np.inf).astype("float16")
    values = iter(arrays)
    given = [
        mask.reshape([int(n) for n in param.shape]) if int(param.shape[-1]) == 128 else next(values)
        for param in one.after.params[:-1]
    ]
    main = one.after.with_attr("global_symbol", "main")
    report = simulate(main, *given, target=TARGET, progress=False)
    (found,) = report.outputs.values()
    assert error_of([found.reshape(want.shape)], [want]) <= 1e-2


def test_heads_of_one_product_are_read_where_they_are() -> None:
    """PyTorch's MultiheadAttention takes them apart by ``tensor[i]``, in float32 as it is mixed."""
    rows, wide = 40, HEADS * HEAD
    packed = relax.Var("x", relax.TensorType((rows, BATCH, 3, wide), "float16"))

    def heads() -> list[Any]:
        turned = emit(op.permute_dims(packed, [2, 0, 1, 3]))
        parts = []
        for at in range(3):
            full = emit(op.astype(turned, "float32"))
            one = emit(op.take(full, relax.const(at, "int64"), axis=0, mode="fast"))
            one = emit(op.reshape(one, (rows, BATCH * HEADS, HEAD)))
            one = emit(op.permute_dims(one, [1, 0, 2]))
            parts.append(emit(op.reshape(one, (BATCH, HEADS, rows, HEAD))))
        return [*(emit(op.astype(one, "float16")) for one in parts[:2]), parts[2]]

    mod = decomposed(rows, rows, None, more=[packed], heads=heads)
    lowered = fused(mod)
    arrays = [np.random.default_rng(0).standard_normal((rows, BATCH, 3, wide)).astype("float16")]
    want = by_cpu(mod, arrays)
    assert error_of(by_cpu(lowered, arrays), want) <= 1e-2
    (one,) = scheduled(lowered)
    assert one.choice.rule == "attention"
    check(one)


def test_layers_share_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM annotates a buffer of the operator's own, by which equal functions differed."""
    read = list[Any]()
    monkeypatch.setattr(gather, "read_attention", lambda f: read.append(f) or read_attention(f))
    gather._with_kernel.cache_clear()

    def build(q: Any, k: Any, v: Any) -> Any:
        return op.nn.attention(op.nn.attention(q, k, v), k, v)

    names = [gv.name_hint for gv in fused(relax_module(build, *[(1, 40, 2, HEAD)] * 3)).functions]
    assert sorted(names) == ["attention", "main"]
    assert len(read) == 1


def test_a_mask_of_which_nothing_is_hidden_leaves_what_it_is_put_over() -> None:
    """As T5's positions are, by head, under the padding of a batch that has none."""
    given = relax.Var("places", relax.TensorType((1, HEADS, 40, 40), "float32"))

    def places(rows: int, keys: int) -> Any:
        seen = emit(op.broadcast_to(relax.const(np.ones((BATCH, 1, 1, keys), "bool")), WIDE))
        return op.where(seen, given, relax.const(float("-inf"), "float32"))

    functions = scheduled(fused(decomposed(40, 40, places, more=[given])))
    (one,) = (one for one in functions if one.choice.rule == "attention")
    shapes = [tuple(map(int, param.shape)) for param in one.after.params]
    assert (1, HEADS, 40, 40) in shapes
    assert WIDE not in shapes
    check(one)


def test_layers_share_what_is_cast_for_them() -> None:
    def build(between: Any, k: Any, v: Any, bias: Any) -> Any:
        for _ in range(2):
            between = op.nn.attention(between, k, v, op.astype(bias, "float16"))
        return op.add(between, v)

    mod = relax_module(build, *[(1, 40, 2, HEAD)] * 3, ((1, 2, 40, 40), "float32"))
    composed = ComposeAttention()(mod)["main"].script()
    assert composed.count("R.astype") == 1
    assert composed.count("R.nn.attention_bias") == 2


#: Windows beside heads, as they are permuted from (batch, window, place, part, head, element), of
#: some sizes: as NesT has them, and as Twins and Hiera.
WINDOWS = {"behind heads": [3, 0, 4, 1, 2, 5], "before heads": [3, 0, 1, 4, 2, 5]}


def in_windows(
    order: list[int], head: int = 32, mask: tuple[int, ...] | None = None
) -> tvm.IRModule:
    """Attention of five dims, of which torch multiplies in ``float32``, and a mask of a shape."""
    batch, windows, places, heads = 2, 3, 20, 2
    sizes = (batch, windows, places, 3, heads, head)
    left = [sizes[at] for at in order[1:4]]
    flat, root = batch * windows * heads, relax.const(head**-0.25, "float32")

    def build(x: Any, *masks: Any) -> Any:
        turned = emit(op.permute_dims(emit(op.reshape(x, sizes)), order))
        parts = [emit(op.strided_slice(turned, [0], [at], [at + 1])) for at in range(3)]
        q, k, v = (emit(op.astype(emit(op.squeeze(one, [0])), "float32")) for one in parts)
        keys = emit(op.multiply(emit(op.permute_dims(k, [0, 1, 2, 4, 3])), root))
        one = emit(op.reshape(emit(op.multiply(q, root)), (flat, places, head)))
        other = emit(op.reshape(keys, (flat, head, places)))
        scores = emit(op.reshape(emit(op.matmul(one, other)), (*left, places, places)))
        for one in masks:
            scores = emit(op.add(scores, emit(op.astype(one, "float32"))))
        weights = emit(op.nn.softmax(scores, -1))
        hidden = emit(op.equal(scores, relax.const(float("-inf"), "float32")))
        seen = emit(op.max(emit(op.astype(emit(op.logical_not(hidden)), "int8")), -1, True))
        empty = emit(op.logical_not(emit(op.astype(seen, "bool"))))
        zeros = emit(op.full_like(weights, relax.const(0.0, "float32")))
        weights = emit(op.reshape(emit(op.where(empty, zeros, weights)), (flat, places, places)))
        means = emit(op.matmul(weights, emit(op.reshape(v, (flat, places, head)))))
        means = emit(op.astype(emit(op.reshape(means, (*left, places, head))), "float16"))
        behind = [0, 2, 3, 1, 4] if order[2] == 4 else [0, 1, 3, 2, 4]
        return op.reshape(emit(op.permute_dims(means, behind)), (batch, windows, places, -1))

    shapes = [(batch, windows, places, 3 * heads * head)]
    return relax_module(build, *shapes, *([] if mask is None else [mask]))


@pytest.mark.parametrize("name", WINDOWS)
def test_attention_in_windows_is_one_kernel_that_reads_them_in_place(name: str) -> None:
    mod = in_windows(WINDOWS[name])
    lowered = fused(mod)
    arrays = [np.random.default_rng(0).standard_normal((2, 3, 20, 192)).astype("float16")]
    assert error_of(by_cpu(lowered, arrays), by_cpu(mod, arrays)) <= 1e-2
    # A view that the function gives is copied.
    (only,) = (one for one in scheduled(lowered) if "reshape" not in one.choice.name)
    check(only, "attention")


#: Masks, as dims are in ``WINDOWS["before heads"]``, and whether the kernel adds them.
MASKS: dict[str, tuple[tuple[int, ...], bool]] = {
    "of rows": ((20, 20), True),
    "of heads": ((1, 1, 2, 20, 20), True),
    "of all": ((2, 3, 2, 20, 20), True),
    "of windows": ((1, 3, 1, 20, 20), False),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("head", [32, 20])
def test_windows_have_masks(name: str, head: int) -> None:
    """One that differs by window, and is repeated for images, stays a tensor of all dims."""
    shape, is_taken = MASKS[name]
    mod = in_windows(WINDOWS["before heads"], head, shape)
    lowered, rng = fused(mod), np.random.default_rng(0)
    arrays = [rng.standard_normal(one).astype("float16") for one in ((2, 3, 20, 6 * head), shape)]
    assert error_of(by_cpu(lowered, arrays), by_cpu(mod, arrays)) <= 1e-2
    rules = [one.choice.rule for one in scheduled(lowered)]
    assert ("attention" in rules) == (is_taken and head == 32)
    assert ("threads" in rules) == (not is_taken)


def test_windows_whose_heads_no_kernel_takes_are_multiplied_by_tensor_cores() -> None:
    mod = in_windows(WINDOWS["behind heads"], 20)
    arrays = [np.random.default_rng(0).standard_normal((2, 3, 20, 120)).astype("float16")]
    lowered = fused(mod)
    assert error_of(by_cpu(lowered, arrays), by_cpu(mod, arrays)) <= 1e-2
    rules = [one.choice.rule for one in scheduled(lowered)]
    assert "threads" not in rules
    assert rules.count("tensor cores") + rules.count("warpgroups") == 2
