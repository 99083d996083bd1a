"""Quotients and remainders of what runs backwards, which TVM's FlattenBuffer writes as others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx

import tvm_layout_ext as tlx
from tests.programs.emitted import cuda_text
from tests.programs.pipelines import LANES, block, copy, loop, program
from tests.programs.prefetched import scheduled
from tests.sampling import pairs
from tvm_layout_ext import transform
from tvm_layout_ext.simulate import simulate

ROW = 512
HEAD = (
    f"A: T.Buffer((4, {ROW}), 'float32'), B: T.Buffer(({LANES},), 'float32'), "
    "W: T.Buffer((4,), 'int32'), n: T.int32"
)
SUM = block("sum", "B[t], S[31 - t]", "B[t]", "B[t] = B[t] + S[31 - t]")
SHIFTS = np.array([3, 1, 9, 7], "int32")
INDICES = [
    "({} + 31 - t) % 32",
    "({} + 95 - t) // 32",
    "({} + 62 - t * 2) % 64",
    "({} + 64 - t) % 30",
    "({} + 31 - t // 4) % 8",
    "({} + 5 - t % 4) % 4",
    "(({} + 31 - t) % 32 + 1) % 32",
    "({} + 128 - t * 4) % 64",
    "({} + t) % 30",
]
BASES = ["W[0]", "W[k]", "5", "n", "W[0] * 2", "W[k] * 32"]


def gathered(index: str, stages: int) -> Any:
    """Rows of A, gathered by an index."""
    source = f"A[k, {index}]"
    fill = copy("S", source, stages)
    fill = fill.replace(f"T.reads({source})", f"T.reads(A[k, 0:{ROW}], W[0:4])")
    return program(HEAD, [loop("for k in range(4)", fill, SUM)])


def simulated(index: str, stages: int) -> tuple[np.ndarray, np.ndarray]:
    """What the simulated GPU gives, and NumPy."""
    a = np.random.default_rng(0).integers(-50, 50, (4, ROW)).astype("float32")
    zeros = np.zeros(LANES, "float32")
    found = simulate(gathered(index, stages), a, zeros, SHIFTS, 11).outputs["B"]
    values = {"W": SHIFTS, "n": 11, "t": 31 - np.arange(LANES)}
    expected = sum(a[k][eval(index, {"k": k, **values})] for k in range(4))
    return found, expected


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_reversed_gather_keeps_its_load_in_the_prologue(stages: int) -> None:
    """The prologue has W[0], which its copy lost."""
    index = INDICES[0].format("W[k]")
    found, expected = simulated(index, stages)
    np.testing.assert_array_equal(found, expected)
    func = gathered(index, stages)
    mod = func if isinstance(func, tvm.IRModule) else tvm.IRModule.from_expr(func)
    source = cuda_text(mod)
    assert ("W_ptr[0]" in source) == (stages > 1), source


@pytest.mark.matrix
@pairs(
    stages=[1, 2, 3],
    index=INDICES,
    base=BASES,
)
def test_indices_that_run_backwards_keep_their_values(index: str, base: str, stages: int) -> None:
    found, expected = simulated(index.format(base), stages)
    np.testing.assert_array_equal(found, expected)


def flat_access(index: Any, *, annotated: bool) -> tirx.PrimFunc:
    """A loop over t that loads and stores at one index."""
    source, target = (tirx.decl_buffer((64,), "float32", name) for name in ("A", "B"))
    place = index(VAR)
    store = tirx.BufferStore(target, tirx.BufferLoad(source, [place]), [place])
    nest = tirx.For(VAR, 0, 32, tirx.ForKind.SERIAL, store)
    func = tirx.PrimFunc([source, target], nest)
    return func.with_attr("layout_ext.annotated", 1) if annotated else func


VAR = tirx.Var("t", "int32")
REVERSED = [
    lambda t: tirx.floormod(36 - t, 32),
    lambda t: tirx.floordiv(t * -1 + 36, 32),
    lambda t: tirx.floormod(tirx.floormod(40 - t, 32) + 36 - t * 2, 30),
]
FORWARD = [
    lambda t: 36 - t,
    lambda t: tirx.floormod(t + 5, 32),
    lambda t: tirx.floormod(t * 3 - 5, 32),
    lambda t: tirx.floordiv(36 - (5 - t), 4),
]


def covers(func: tirx.PrimFunc) -> int:
    calls: list[Any] = []
    tvm_ffi.structural_walk(func.body, [(tvm.ir.Call, calls.append)])
    return sum(call.op.name == "tirx.reinterpret" for call in calls)


@pytest.mark.parametrize("index", [*REVERSED, *FORWARD])
def test_what_runs_backwards_is_covered_and_shown_again(index: Any) -> None:
    func = flat_access(index, annotated=True)
    mod = tvm.IRModule({"main": func})
    hidden = transform.ProtectReversedIndices()(mod)
    assert (covers(hidden["main"]) > 0) == (index in REVERSED)
    tvm.ir.assert_structural_equal(transform.RestoreReversedIndices()(hidden), mod)
    flat = transform.RestoreReversedIndices()(tirx.transform.FlattenBuffer()(hidden))["main"]
    assert covers(flat) == 0
    stores: list[Any] = []
    tvm_ffi.structural_walk(flat.body, [(tirx.BufferStore, stores.append)])
    analyzer = tvm.sym.Analyzer()
    for t in range(32):
        value = tirx.IntImm("int32", t)
        swap = (tirx.Var, lambda v, value=value: value if v.name == "t" else v)
        found = tvm_ffi.structural_map(stores[0].indices[0], [swap], order="post")
        assert int(analyzer.simplify(found)) == int(analyzer.simplify(index(value)))


def test_kernels_that_run_forwards_are_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tlx.cuda_target("sm_90a")
    ours = tlx.lower(scheduled(4, 4, 3).mod, target=target)
    kept = {k: v for k, v in tlx.pipeline._BEFORE.items() if k != "tirx.FlattenBuffer"}
    monkeypatch.setattr(tlx.pipeline, "_BEFORE", kept)
    tvm.ir.assert_structural_equal(ours, tlx.lower(scheduled(4, 4, 3).mod, target=target))
