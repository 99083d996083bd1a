"""Products of symbolic sizes: one schedule for any number of tokens."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.relax import op
from tvm.s_tir import SBlockRealize
from tvm.script import tirx as T

from benchmarks.model_zoo import block, mlp
from tests.models import running
from tests.models.running import check, fused, only, scheduled
from tests.programs.relaxed import relax_module
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.ir.queries import nodes_in
from tvm_layout_ext.models import on_tensor_cores
from tvm_layout_ext.models.any_size import any_rows
from tvm_layout_ext.models.any_size.merged_rows import merge_rows
from tvm_layout_ext.models.any_size.whole_tiles import TILE, whole_tiles
from tvm_layout_ext.transform.hopper import plan


def product_and(x: Any, w: Any, y: Any) -> Any:
    """A product, and what is added to it."""
    return op.add(op.matmul(x, w), y)


@pytest.mark.whole
def test_products_of_any_tokens_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    # Heads of 20 elements, which no kernel of attention takes.
    every = fused(block("n", 80, 4).module).functions.items()
    found = scheduled(tvm.IRModule({gv: one for gv, one in every if "matmul" in gv.name_hint}))
    assert {one.choice.rule for one in found} == {"tensor cores", "warpgroups"}
    # Scores have two symbolic sizes, and the product behind them a symbolic K.
    for size, some in ((1, found[:1]), (TILE, found[-1:]), (TILE + 6, found)):
        monkeypatch.setattr(running, "SIZE", size)
        for one in some:
            check(one)


def test_products_of_float32_are_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "SIZE", TILE + 6)
    for one in scheduled(mlp("n", 20, 48, 12).module):
        assert one.choice.rule == "threads"
        check(one)


@pytest.mark.costly
@pytest.mark.parametrize(("dtype", "rule"), [("float16", "warpgroups"), ("float32", "threads")])
def test_rows_of_several_dims_are_counted_through(
    monkeypatch: pytest.MonkeyPatch, dtype: str, rule: str
) -> None:
    def build(x: Any, w: Any, bias: Any, more: Any) -> Any:
        return op.nn.relu(op.add(op.add(op.matmul(x, w), bias), more))

    # Two sizes of 1021, as which symbolic ones count, and the columns are no 32-bit index.
    shapes = ("b", "s", 24), (24, 2080), (2080,), ("b", "s", 2080)
    one = only(relax_module(build, *shapes, dtype=dtype))
    for size in (1, 9) if rule == "threads" else (9,):
        monkeypatch.setattr(running, "SIZE", size)
        check(one, rule)


@pytest.mark.costly
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rows_may_be_fewer_than_a_size_says(dtype: str) -> None:
    """As tokens behind the first one are: no size is a variable."""

    def build(x: Any, w: Any) -> Any:
        return op.matmul(op.strided_slice(x, [1], [1], [x.ty.shape.values[1]]), w)

    for one in scheduled(relax_module(build, (2, "n", 24), (24, 40), dtype=dtype)):
        assert not one.choice.fell_back
        check(one)


@pytest.mark.parametrize("by_wgmma", [True, False])
def test_the_host_chooses_a_kernel_for_few_rows_or_for_many(
    monkeypatch: pytest.MonkeyPatch, by_wgmma: bool
) -> None:
    """Few rows by their own tiles of ``wgmma``, or by slices of K where it takes many alone."""
    k, n = (64, 2048) if by_wgmma else (1024, 64)
    mod = relax_module(product_and, ("b", "s", k), (k, n), ("b", "s", n))
    monkeypatch.setattr(any_rows, "MOST_FEW", 10)
    if not by_wgmma:
        real = any_rows._as_if_of

        def of_many(func: Any, size: Any, rows: int, *more: Any) -> Any:
            return None if rows == any_rows.FEW else real(func, size, rows, *more)

        monkeypatch.setattr(any_rows, "_as_if_of", of_many)
    one = only(mod)
    assert one.choice.rule == "warpgroups"
    assert "of up to 10 rows" in one.choice.text
    few = "1 slices" if by_wgmma else "8 slices"
    assert f"{few} of K; of more" in one.choice.text
    for size, kernels in ((3, 1 if by_wgmma else 2), (9, 1)):
        monkeypatch.setattr(running, "SIZE", size)
        assert len(check(one).launches) == kernels


def test_nests_of_as_many_rows_beside_a_product_are_no_case_for_wgmma(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their loops would be of as many rows as the kernel was scheduled for."""
    n = te.var("n", "int64")
    x, w = (te.placeholder(s, "float16", name=v) for s, v in (((n, 64), "x"), ((64, 64), "w")))
    k = te.reduce_axis((0, 64), name="k")
    product = te.compute(
        (n, 64),
        lambda i, c: te.sum(x[i, k].astype("float32") * w[c, k].astype("float32"), axis=k),
        name="product",
    )
    twice = te.compute((n, 64), lambda i, c: x[i, c] + x[i, c], name="twice")
    func = te.create_prim_func([x, w, product, twice])
    one = only(tvm.IRModule({"both": func}))
    assert "of more" not in one.choice.text
    monkeypatch.setattr(running, "SIZE", 140)
    check(one)


@pytest.mark.whole
def test_warpgroups_take_turns_at_any_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(x: Any, w: Any, y: Any) -> Any:
        return op.add(op.nn.gelu(op.matmul(x, w)), y)

    def chosen(*_: Any, any_rows: bool) -> dict[str, Any]:
        return {} if any_rows else {"wgmma": "2x64x128", "split_k": 1}

    monkeypatch.setattr(on_tensor_cores, "_wgmma", chosen)
    monkeypatch.setattr(any_rows, "MOST_FEW", 10)
    monkeypatch.setattr(plan, "MULTIPROCESSORS", 3)
    one = only(relax_module(build, ("b", 136), (136, 192), ("b", 192)))
    assert "of more" in one.choice.text
    assert "tiles of 2x64x128" in one.choice.text
    for size in (11, 290):
        monkeypatch.setattr(running, "SIZE", size)
        check(one)


def test_rows_stay_apart_where_a_place_in_them_counts() -> None:
    mod = relax_module(product_and, ("b", "s", 24), (24, 16), ("s", 16), dtype="float32")
    (product,) = (f for f in fused(mod).functions.values() if isinstance(f, tirx.PrimFunc))
    assert merge_rows(product) is None


@pytest.mark.parametrize(("dtype", "rule"), [("float16", "warpgroups"), ("float32", "threads")])
def test_rows_whose_places_count_are_a_batch_of_products(dtype: str, rule: str) -> None:
    mod = relax_module(product_and, ("b", 24, 64), (64, 72), (24, 72), dtype=dtype)
    check(only(mod), rule)


def test_one_sequence_has_the_tile_of_its_rows_alone() -> None:
    # A batch of one takes no tiles from others: 128 x 4096 by 1024 took 42 us in tiles of 128x256.
    found = []
    for rows in ([128], [1, 128]):
        found.append(only(relax_module(op.matmul, (*rows, 1024), (1024, 4096))).choice.text)
    assert found[0] == found[1]


def test_ragged_rows_of_one_product_take_the_transpose() -> None:
    def build(x: Any, w: Any, *bias: Any) -> Any:
        return op.add(op.matmul(x, w), *bias) if bias else op.matmul(x, w)

    weight = 72, 1536
    of_rows = [(400, 72), weight], [(1, 400, 72), weight, (1536,)], [(2, 200, 72), weight]
    found = [only(relax_module(build, *shapes)) for shapes in of_rows]
    found.append(only(relax_module(build, (2, 200, 72), (2, *weight))))
    assert ["tiles of t" in one.choice.text for one in found] == [True, True, True, False]
    check(found[2])


def test_long_sequences_have_no_kernel_for_few_rows() -> None:
    one = only(relax_module(op.matmul, ("b", 200, 24), (24, 16)))
    assert "of up to" not in one.choice.text
    assert not one.choice.fell_back, one.choice.text


def test_calls_beyond_32_bits_are_refused() -> None:
    (one, *_) = (f for f in scheduled(mlp("n", 20, 48, 12).module) if "matmul" in f.name)
    assert "T.assume(n <=" in str(one.after)


@T.prim_func(s_tir=True)
def but_the_last(a: T.handle, B: T.Buffer((64, 32), "float16"), c: T.handle) -> None:
    n = T.int64()
    A = T.match_buffer(a, (n, 32), "float16")
    C = T.match_buffer(c, (n, 64), "float32")
    S = T.sblock_alloc_buffer((n, 64), "float32")
    for i, j, k in T.grid(n, 64, 32):
        with T.sblock("S"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                S[vi, vj] = T.float32(0)
            S[vi, vj] += T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vj, vk])
    for i, j in T.grid(n, 64):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.if_then_else(vi < n - 1, S[vi, vj], T.float32(0))


def test_values_that_depend_on_a_size_have_that_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = only(tvm.IRModule({"func": but_the_last}))
    for size in (1, 2, TILE, TILE + 6):
        monkeypatch.setattr(running, "SIZE", size)
        check(one, "tensor cores")


def test_blocks_under_a_condition_on_a_size_have_no_whole_tiles() -> None:
    (block, *_) = (one for one in nodes_in(but_the_last.body, SBlockRealize) if one.iter_values)
    n = but_the_last.params[0].shape[0]

    def under(node: Any) -> Any:
        same = node.block.same_as(block.block)
        return SBlockRealize(node.iter_values, n > 3, node.block) if same else node

    body = tvm_ffi.structural_map(but_the_last.body, [(SBlockRealize, under)], order="post")
    with pytest.raises(ScheduleError, match="computed from n, which whole tiles change"):
        whole_tiles(but_the_last.with_body(body))


def test_numbers_need_no_tiles() -> None:
    (one, *_) = (f for f in scheduled(mlp(8, 20, 48, 12).module) if "matmul" in f.name)
    assert isinstance(one.before, tirx.PrimFunc)
    assert whole_tiles(one.before) is None
