"""Conversions between register tiles: which are removed, moved or kept, and at what cost."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.programs.conversions import (
    NAME,
    combined,
    conversions_in,
    in_turn,
    program,
    stores,
    versioned_tiles,
)
from tests.programs.running import gives
from tests.programs.strategies import splits
from tvm_layout_ext import explain
from tvm_layout_ext import layout as L
from tvm_layout_ext.simulate import Report, simulate
from tvm_layout_ext.transform import CombineLayoutConversions

LINE, FOURS = L.BlockedLayout([1], [32], [4], [0]), L.BlockedLayout([4], [32], [4], [0])
ROWS = L.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
COLUMNS = L.BlockedLayout([4, 1], [8, 4], [1, 4], [0, 1])
#: The elements of each thread of ROWS, in other registers.
RENAMED = L.DistributedLinearLayout(
    [[32, 0], [0, 1], [16, 0], [0, 2], [0, 32]],
    [[0, 4], [0, 8], [0, 16], [1, 0], [2, 0]],
    [[4, 0], [8, 0]],
    [],
    [64, 64],
)
ACCUMULATOR = L.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])
OPERAND = L.DotOperandLayout(0, ACCUMULATOR, 2)
Parts = tuple[Mapping[str, Any], Mapping[str, Any], str | Sequence[str]]


def lines(
    layouts: Mapping[str, Any],
    statements: str | Sequence[str],
    dtype: str = "float32",
    out: str = "float32",
    **types: str,
) -> Parts:
    """A program over lines of 1024 elements, from A to O."""
    tensors = {"A": ((1024,), dtype), "O": ((1024,), out)}
    return (
        tensors,
        {n: ((1024,), types.get(n, dtype), one) for n, one in layouts.items()},
        statements,
    )


def tiles(
    layouts: Mapping[str, Any],
    statements: str | Sequence[str],
    dtype: str = "float32",
    **types: str,
) -> Parts:
    """A program over tiles of 64x64, from A to O, whose type is that of the last buffer."""
    buffers = {n: ((64, 64), types.get(n, dtype), one) for n, one in layouts.items()}
    last = list(buffers.values())[-1][1]
    return {"A": ((64, 64), dtype), "O": ((64, 64), last)}, buffers, statements


def run(parts: Parts) -> tuple[Report, Report]:
    """Simulate with the pass and without; the results must be the same to the bit."""
    mod = program(*parts)
    *inputs, _ = (
        np.random.default_rng(0).integers(-4, 5, shape).astype(dtype)
        for shape, dtype in parts[0].values()
    )
    with tvm.transform.PassContext(disabled_pass=[NAME]):
        before = simulate(mod, *inputs, None)
    after = gives(mod, *inputs, None, O=before.outputs["O"])
    assert not before.hazards
    assert not after.hazards
    return before, after


def shared_wavefronts(report: Report) -> int:
    return sum(a.wavefronts for a in report.accesses if a.scope.startswith("shared"))


def check(parts: Parts, expected: str | Sequence[str], told: str = "") -> list[str]:
    """The stores that the pass leaves; a second run must change nothing."""
    _, after, notes = combined(program(*parts))
    assert stores(after) == in_turn(expected)
    again = CombineLayoutConversions()(after)
    tvm.ir.assert_structural_equal(again, after)
    assert any(told in note for note in notes), notes
    return notes


# Conversions of conversions


def test_a_conversion_of_a_conversion_is_one() -> None:
    parts = tiles({"F": ROWS, "G": ACCUMULATOR, "H": COLUMNS}, "F = A; G = F; H = G; O = H")
    check(parts, "F = A; H = F; O = H", "not by way of G")
    before, after = run(parts)
    assert shared_wavefronts(after) * 2 <= shared_wavefronts(before)


def test_there_and_back_is_none() -> None:
    parts = tiles({"F": ROWS, "G": COLUMNS, "H": ROWS}, "F = A; G = F; H = G; O = H")
    check(parts, "F = A; O = F", "H: readers take F")
    before, after = run(parts)
    assert before.shared_bytes > 0
    assert (after.shared_bytes, after.barriers) == (0, 0)


def test_the_same_conversion_twice_is_made_once() -> None:
    parts = tiles(
        {"F": ROWS, "G": COLUMNS, "H": COLUMNS, "S": COLUMNS},
        "F = A; G = F; H = F; S = G * H; O = S",
    )
    check(parts, "F = A; G = F; S = G * G; O = S", "H: readers take G")


# Recomputing


@pytest.mark.parametrize("value", ["T.float32(3)", "T.Cast('float32', vi)"])
def test_constants_and_indices_are_made_where_they_are_wanted(value: str) -> None:
    """Cases cst, splat and range of Triton's combine.mlir."""
    parts = lines({"F": LINE, "G": FOURS}, [f"F = {value}", "G = F", "O = G"])
    _, after, notes = combined(program(*parts))
    assert len(stores(after)) == 2
    assert "G: recomputes F in its layout: 0 bytes are converted in the place of 4,096" in notes
    before, after_run = run(parts)
    assert before.shared_bytes > 0
    assert after_run.shared_bytes == 0


@pytest.mark.parametrize(("elements", "conversions"), [(16, 0), (64, 0), (128, 1), (256, 1)])
def test_loads_of_fewer_elements_than_threads_are_repeated(elements: int, conversions: int) -> None:
    """Case remat_fast_load of Triton's combine.mlir, and what lies on the other side of it."""
    parts = (
        {"A": ((elements,), "int32"), "O": ((elements,), "int32")},
        {"F": ((elements,), "int32", FOURS), "G": ((elements,), "int32", LINE)},
        ["F = A", "G = F", "O = G"],
    )
    before, after, _ = combined(program(*parts))
    assert (conversions_in(before), conversions_in(after)) == (1, conversions)
    run(parts)


def test_renamed_registers_cost_nothing_so_nothing_is_recomputed_for_them() -> None:
    """The conversion moves no data: even the cheapest operation beside it costs more."""
    tensors = {"A": ((64, 64), "int32"), "P": ((64, 64), "int32"), "O": ((64, 64), "int32")}
    buffers = {"F": ((64, 64), "int32", ROWS), "G": ((64, 64), "int32", RENAMED)}
    mod = program(tensors, buffers, "F = vi * vj; G = F; P = F; O = G")
    before, after, notes = combined(mod)
    assert notes == []
    tvm.ir.assert_structural_equal(before, after)


# Moving conversions


def test_a_widening_cast_follows_its_conversion() -> None:
    """Cases hoist_above_ext and hoist_above_ext2 of Triton's combine.mlir."""
    parts = lines(
        {"F": LINE, "E": LINE, "C": LINE, "D": LINE, "G": LINE, "H": FOURS},
        "F = A; E = T.Cast('float32', F); C = T.float16(3); D = T.Cast('float32', C); "
        "G = E + D; H = G; O = H",
        "float16",
        E="float32",
        D="float32",
        G="float32",
        H="float32",
    )
    check(
        parts,
        [
            "F = A",
            "F_1 = F",
            'E_2 = T.Cast("float32", F_1)',
            "C_2 = T.float16(3.0)",
            'D_2 = T.Cast("float32", C_2)',
            "G_1 = E_2 + D_2",
            "O = G_1",
        ],
        "H: recomputes G in its layout: 2,048 bytes are converted in the place of 4,096",
    )
    before, after = run(parts)
    assert (before.shared_bytes, after.shared_bytes) == (4096, 2048)


def test_a_broadcast_follows_its_conversion() -> None:
    """Case hoist_above_broadcast of Triton's combine.mlir, with a vector in a slice."""
    parts = (
        {"A": ((256,), "float32"), "O": ((256, 128), "float32")},
        {
            "F": ((256,), "float32", L.SliceLayout(1, ROWS)),
            "E": ((256, 128), "float32", ROWS),
            "G": ((256, 128), "float32", ROWS),
            "C": ((256, 128), "float32", COLUMNS),
        },
        ["F = A", "E = F", "G = E + T.float32(3)", "C = G", "O = C"],
    )
    check(
        parts,
        "F = A; F_1 = F; E_2 = F_1; G_1 = E_2 + T.float32(3.0); O = G_1",
        "C: recomputes G in its layout: 1,024 bytes are converted in the place of 131,072",
    )
    before, after = run(parts)
    assert shared_wavefronts(after) * 8 <= shared_wavefronts(before)


def test_a_narrowing_cast_stays_before_its_conversion() -> None:
    """Case dont_hoist_above_trunc_fptofp of Triton's combine.mlir."""
    parts = lines(
        {"F": LINE, "G": LINE, "H": FOURS},
        "F = A; G = T.Cast('float16', F); H = G; O = H",
        "float32",
        "float16",
        G="float16",
        H="float16",
    )
    before, after, notes = combined(program(*parts))
    tvm.ir.assert_structural_equal(before, after)
    assert notes == []


# Stores in shared memory


def staged(buffers: Mapping[str, Any], *more: str) -> Parts:
    """A is loaded as F, converted to G, and goes through shared S to H, which is the output."""
    return tiles(buffers, ["F = A", "G = F", *more, "S = G", "H = S", "O = H"])


def test_a_tile_is_stored_as_it_lies() -> None:
    parts = staged({"F": ROWS, "G": OPERAND, "S": "shared", "H": COLUMNS})
    check(parts, "F = A; S = F; H = S; O = H", "G: S takes F as it lies")
    before, after = run(parts)
    assert shared_wavefronts(after) < shared_wavefronts(before)


def test_a_conversion_that_others_read_stays_for_them() -> None:
    buffers = {"F": ROWS, "G": ACCUMULATOR, "P": ACCUMULATOR, "S": "shared", "H": COLUMNS}
    parts = staged(buffers, "P = T.exp(G)", "B = P")
    parts = ({**parts[0], "B": ((64, 64), "float32")}, *parts[1:])
    _, after, _ = combined(program(*parts))
    assert {"G = F", "S = F"} <= set(stores(after))


# Loops


@pytest.mark.matrix
@pytest.mark.parametrize("target", [COLUMNS, OPERAND])
@pytest.mark.parametrize("stages", [1, 3])
def test_swizzled_tiles_of_a_pipeline_are_loaded_in_the_layout_of_the_operand(
    target: L.Layout, stages: int
) -> None:
    sch = versioned_tiles((target, ROWS), stages, "auto")
    _, after, notes = combined(sch.mod)
    assert conversions_in(after) == 0
    assert notes == [
        "A_local: recomputes A_local in its layout: 0 bytes are converted in the place of 8,192"
    ]
    value = np.random.default_rng(0).integers(-99, 99, (64, 256)).astype("float16")
    with tvm.transform.PassContext(disabled_pass=[NAME]):
        before = simulate(sch, value, None)
    report = gives(sch, value, None, B=value)
    assert report.barriers < before.barriers
    assert shared_wavefronts(report) < shared_wavefronts(before)
    assert report.shared_bytes <= before.shared_bytes


def test_explain_tells_what_was_decided() -> None:
    told = explain(versioned_tiles((COLUMNS, ROWS), 1, "none")).text()
    assert "CombineLayoutConversions chose for A_local: recomputes A_local in its layout" in told


def test_a_cast_in_an_inner_loop_does_not_take_the_conversion_there() -> None:
    parts = lines(
        {"F": LINE, "G": FOURS, "H": FOURS},
        ["F = A", "G = F", "for k in range(4):", "    H = T.Cast('float16', G)", "    O = H"],
        "float32",
        "float16",
        H="float16",
    )
    before, after, _ = combined(program(*parts))
    tvm.ir.assert_structural_equal(before, after)


# What is left alone


def test_sums_that_change_between_conversions_are_converted_each_time() -> None:
    parts = tiles(
        {"C": ROWS, "F": COLUMNS, "G": COLUMNS, "H": COLUMNS},
        "C = A; F = C; C = C * T.float32(2); G = C; H = F - G; O = H",
    )
    before, after, _ = combined(program(*parts))
    tvm.ir.assert_structural_equal(before, after)
    run(parts)


def test_a_value_made_in_a_branch_is_left_alone() -> None:
    parts = tiles(
        {"F": ROWS, "G": COLUMNS},
        [
            "F = T.float32(1)",
            "G = T.float32(2)",
            "for k in range(2):",
            "    if k == 1:",
            "        G = F",
            "O = G",
        ],
    )
    _, after, _ = combined(program(*parts))
    assert (
        stores(after) == ["G = T.float32(2.0)", "F_1 = T.float32(1.0)", "G = F_1", "O = G"]
        or stores(after)[0] == "F_1 = T.float32(1.0)"
    )
    run(parts)


# Any chain


@st.composite
def chains(draw: st.DrawFn) -> Parts:
    """A load, then copies, constants, indices, products, sums and casts over random layouts."""
    warps = 2 ** draw(st.integers(0, 2))
    shape = draw(st.sampled_from([(8, 16), (16, 16), (32, 16)]))
    pool = [
        L.BlockedLayout(
            draw(splits(2 ** draw(st.integers(0, 3)), 2)), draw(splits(32, 2)),
            draw(splits(warps, 2)), list(draw(st.permutations(range(2)))),
        )
        for _ in range(3)
    ]  # fmt: skip
    buffers: dict[str, Any] = {}
    statements: list[str] = []

    def make(dtype: str, layout: Any, value: str) -> str:
        name = f"F{len(buffers)}"
        buffers[name] = (shape, dtype, layout)
        statements.append(f"{name}[vi, vj] = {value}")
        return name

    current = make("float32", pool[0], "A[vi, vj]")
    for _ in range(draw(st.integers(2, 8))):
        _, dtype, layout = buffers[current]
        kind = draw(
            st.sampled_from(["convert", "convert", "cast", "scale", "constant", "index", "add"])
        )
        like = [n for n, b in buffers.items() if b[1:] == (dtype, layout)]
        if kind == "convert":
            current = make(dtype, draw(st.sampled_from(pool)), f"{current}[vi, vj]")
        elif kind == "cast":
            other = "float16" if dtype == "float32" else "float32"
            current = make(other, layout, f"T.Cast('{other}', {current}[vi, vj])")
        elif kind == "scale":
            current = make(dtype, layout, f"{current}[vi, vj] * T.{dtype}(2)")
        elif kind == "constant":
            current = make(dtype, layout, f"T.{dtype}(3)")
        elif kind == "index":
            current = make(dtype, layout, f"T.Cast('{dtype}', vi - vj)")
        else:
            current = make(
                dtype, layout, f"{current}[vi, vj] + {draw(st.sampled_from(like))}[vi, vj]"
            )
    statements.append(f"O[vi, vj] = {current}[vi, vj]")
    statements = _read(statements)
    buffers = {n: b for n, b in buffers.items() if any(s.startswith(f"{n}[") for s in statements)}
    tensors = {"A": (shape, "float32"), "O": (shape, buffers[current][1])}
    return tensors, buffers, statements


def _read(statements: Sequence[str]) -> list[str]:
    """Those on which the last one depends."""
    kept: list[str] = []
    for statement in reversed(statements):
        target = statement.split(" = ")[0]
        if not kept or any(target in other.split(" = ")[1] for other in kept):
            kept.insert(0, statement)
    return kept


def expected(parts: Parts, a: np.ndarray) -> np.ndarray:
    """The same statements in NumPy."""
    rows, columns = np.meshgrid(*map(np.arange, a.shape), indexing="ij")
    held: dict[str, Any] = {"A": a, "vi": rows, "vj": columns}
    cast = type("T", (), {
        "Cast": staticmethod(lambda dtype, value: np.asarray(value).astype(dtype)),
        "float16": np.float16, "float32": np.float32,
    })  # fmt: skip
    for statement in parts[2]:
        name, value = statement.split(" = ", 1)
        result = eval(value.replace("[vi, vj]", ""), {"T": cast}, held)
        held[name.split("[")[0]] = np.broadcast_to(result, a.shape)
    return np.asarray(held["O"])


@given(chains())
@settings(deadline=None)
def test_any_chain(parts: Parts) -> None:
    mod = program(*parts)
    before, after, _ = combined(mod)
    was, now = conversions_in(before), conversions_in(after)
    event(f"{was} conversions, then {now}")
    assert now <= was
    again = CombineLayoutConversions()(after)
    tvm.ir.assert_structural_equal(again, after)
    a = np.random.default_rng(0).integers(-4, 5, parts[0]["A"][0]).astype("float32")
    report = gives(mod, a, None, O=expected(parts, a))
    assert now or report.shared_bytes == 0


def test_blocks_around_do_not_mention_tiles_that_are_gone() -> None:
    parts = tiles(
        {"F": ROWS, "G": COLUMNS, "H": COLUMNS},
        ["F[vi, vj] = T.float32(1)", "for k in range(2):", "    with T.sblock('outer'):",
         "        vk = T.axis.spatial(2, k)", "        G[vi, vj] = F[vi, vj]",
         "        H[vi, vj] = G[vi, vj] + T.Cast('float32', vk)", "        O[vi, vj] = H[vi, vj]"],
    )  # fmt: skip
    before, after, _ = combined(program(*parts))
    assert "T.reads(F[0:64, 0:64]" in before["main"].script()
    assert "T.reads(F_1[0:64, 0:64]" in after["main"].script()
    assert not re.search(r"\bF\[", after["main"].script())
    run(parts)
