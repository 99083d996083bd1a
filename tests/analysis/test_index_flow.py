"""Claims about values carried round loops and joined after branches, against runs."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import tirx
from tvm.script import tirx as T

from tests.analysis.test_index_info import OPERATIONS, UndefinedError
from tvm_layout_ext.analysis import index_flow
from tvm_layout_ext.analysis.axis_info import AxisInfo
from tvm_layout_ext.analysis.index_flow import follow
from tvm_layout_ext.analysis.index_info import IndexAnalyzer
from tvm_layout_ext.errors import LayoutError

ROW, LANE, N = (tirx.Var(name, "int32") for name in ("row", "lane", "n"))
CELLS = [tirx.decl_buffer((1,), "int32", name, scope="local") for name in "kl"]
OUT = tirx.decl_buffer((1 << 30,), "float32", name="A")
EXTENTS = (2, 8)
AXES = [(v, tvm.ir.Range(0, n)) for v, n in zip((ROW, LANE), EXTENTS, strict=True)]


class Machine:
    """Runs a statement for one element; notes the index of every store by site and rounds."""

    def __init__(self, row: int, lane: int, n: int) -> None:
        self.env: dict[Any, int] = {ROW: row, LANE: lane, N: n}
        self.cells: dict[Any, int | None] = {}
        self.rounds: tuple[int, ...] = ()
        self.seen: dict[tuple[int, tuple[int, ...]], int] = {}
        self.site = 0

    def value(self, node: Any) -> int:
        if isinstance(node, tirx.IntImm):
            return int(node)
        if isinstance(node, tirx.Var):
            return self.env[node]
        if isinstance(node, tvm.ir.TensorLoad):
            held = self.cells.get(node.source)
            if held is None:
                raise UndefinedError
            return held
        sides = (np.array(self.value(side)) for side in (node.a, node.b))
        found = int(OPERATIONS[type(node)](*sides))
        return found if str(node.ty) == "bool" else (found + (1 << 31)) % (1 << 32) - (1 << 31)

    def run(self, node: Any, sites: dict[int, int]) -> None:
        kind = type(node).__name__
        if kind == "SeqStmt":
            for part in node.seq:
                self.run(part, sites)
        elif kind == "Bind":
            self.env[node.var] = self.value(node.value)
        elif kind == "IfThenElse":
            if self.value(node.condition):
                self.run(node.then_case, sites)
            elif node.else_case is not None:
                self.run(node.else_case, sites)
        elif kind == "For":
            outer, start = self.rounds, self.value(node.min)
            for i in range(self.value(node.extent)):
                self.env[node.loop_var], self.rounds = start + i, (*outer, i)
                self.run(node.body, sites)
            self.rounds = outer
        elif node.buffer.same_as(OUT):
            self.seen[sites[node.__hash__()], self.rounds] = self.value(node.indices[0])
        else:
            self.cells[node.buffer] = self.value(node.value)


def stores(node: Any) -> Iterator[Any]:
    """The stores to memory, in the order of the program."""
    kind = type(node).__name__
    if kind == "SeqStmt":
        for part in node.seq:
            yield from stores(part)
    elif kind == "IfThenElse":
        yield from stores(node.then_case)
        if node.else_case is not None:
            yield from stores(node.else_case)
    elif kind == "For":
        yield from stores(node.body)
    elif kind == "BufferStore" and node.buffer.same_as(OUT):
        yield node


def expressions(variables: list[Any]) -> st.SearchStrategy[Any]:
    numbers = st.sampled_from([0, 1, 2, 3, 4, 8, 16, -4]).map(lambda n: tirx.IntImm("int32", n))
    loads = st.sampled_from(CELLS).map(lambda cell: cell[0])
    leaves = st.one_of(numbers, loads, st.sampled_from([ROW, LANE, N, *variables]))
    kinds = st.sampled_from(
        [tirx.Add, tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.BitwiseXor]
    )
    pair = st.builds(lambda kind, a, b: kind(a, b), kinds, leaves, leaves)
    return st.one_of(leaves, pair, st.builds(tirx.Add, pair, leaves))


@st.composite
def programs(draw: Any, depth: int = 2, variables: tuple[Any, ...] = ()) -> Any:
    """Statements that set cells, branch, loop and store."""
    parts: list[Any] = []
    known = list(variables)
    for _ in range(draw(st.integers(2, 4))):
        value = expressions(known)
        kind = draw(st.sampled_from(["cell", "cell", "store", "let", "if", "for"]))
        if kind == "cell" or (depth == 0 and kind in ("if", "for")):
            parts.append(tirx.BufferStore(draw(st.sampled_from(CELLS)), draw(value), [0]))
        elif kind == "store":
            parts.append(tirx.BufferStore(OUT, tirx.FloatImm("float32", 0), [draw(value)]))
        elif kind == "let":
            known.append(tirx.Var(f"v{len(known)}", "int32"))
            parts.append(tirx.Bind(known[-1], draw(value)))
            # Bound here, so known only in what follows.
        elif kind == "if":
            compare = draw(st.sampled_from([tirx.LT, tirx.EQ, tirx.GE]))
            sides = [draw(programs(depth - 1, tuple(known))) for _ in range(2)]
            other = sides[1] if draw(st.booleans()) else None
            parts.append(tirx.IfThenElse(compare(draw(value), draw(value)), sides[0], other))
        else:
            variable = tirx.Var(f"i{depth}{len(known)}", "int32")
            extent = draw(st.sampled_from([tirx.IntImm("int32", 3), LANE, tirx.FloorMod(N, 4)]))
            start = draw(st.sampled_from([tirx.IntImm("int32", 0), LANE, N]))
            body = draw(programs(depth - 1, (*known, variable)))
            parts.append(tirx.For(variable, start, extent, tirx.ForKind.SERIAL, body))
    return tirx.SeqStmt(parts)


def check(info: AxisInfo, values: np.ndarray, active: np.ndarray) -> None:
    """Claims hold of the elements that run."""
    if info.constant is not None:
        assert (values[active] == info.constant).all(), "constant"
    for axis, size in enumerate(EXTENTS):
        lines = np.moveaxis(values, axis, -1).reshape(-1, size)
        runs = np.moveaxis(active, axis, -1).reshape(-1, size)
        both = runs[:, 1:] & runs[:, :-1]
        for length, step, what in (
            (info.contiguity[axis], 1, "run"),
            (info.constancy[axis], 0, "group"),
        ):
            inner = both & (np.arange(1, size) % length != 0)
            assert (np.diff(lines, axis=-1)[inner] == step).all(), what
        first = np.arange(size) % info.contiguity[axis] == 0
        chosen = lines[runs & first]
        assert (chosen % min(info.divisibility[axis], 1 << 31) == 0).all(), "divisibility"


@given(st.data())
def test_claims_hold_in_every_round(data: st.DataObject) -> None:
    """Two programs a draw, each at two values of n; some loops run differently long."""
    for _ in range(2):
        start = [
            tirx.BufferStore(cell, data.draw(expressions([]).filter(_reads_no_cell)), [0])
            for cell in CELLS
        ]
        body = tirx.SeqStmt([*start, data.draw(programs())])
        found = follow(body, IndexAnalyzer(AXES, divisible={N: 4}))
        found = [access for access in found if access.kind == "store"]
        sites = {node.__hash__(): i for i, node in enumerate(stores(body))}
        assert len(found) == len(sites)
        for n in (data.draw(st.sampled_from([0, 4, 8, -12, 64])), 1 << 30):
            compare_with_runs(body, found, sites, n)


def _reads_no_cell(expr: Any) -> bool:
    return "[0]" not in str(expr)


def compare_with_runs(body: Any, found: Any, sites: dict[int, int], n: int) -> None:
    elements = {}
    for place in np.ndindex(*EXTENTS):
        machine = Machine(*place, n)
        try:
            machine.run(body, sites)
        except UndefinedError:
            return
        elements[place] = machine.seen
    for key in {key for seen in elements.values() for key in seen}:
        values, active = np.zeros(EXTENTS, np.int64), np.zeros(EXTENTS, bool)
        for place, seen in elements.items():
            if key in seen:
                values[place], active[place] = seen[key], True
        check(found[key[0]].indices[0], values, active)


def found_in(func: tirx.PrimFunc) -> dict[str, AxisInfo]:
    """First index of every access, by kind and buffer, along the first parameter."""
    axis = (func.params[-1], tvm.ir.Range(0, 64))
    found = follow(func.body, IndexAnalyzer([axis]))
    return {f"{access.kind} {access.buffer.name}": access.indices[0] for access in found}


def test_offset_carried_round_a_loop() -> None:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((4096,), "float32"), B: T.Buffer((4096,), "float32"), lane: T.int32):
        k = T.alloc_buffer((1,), "int32", scope="local")
        k[0] = 128
        for _step in range(8):
            B[k[0] + lane] = A[k[0] * 2 + lane]
            k[0] = k[0] + 32

    found = found_in(main)

    assert found["store B"].contiguity == (32,)
    assert found["load A"].divisibility == (64,)


def test_unequal_steps_join_to_what_both_have() -> None:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((4096,), "float32"), n: T.int32, lane: T.int32):
        k = T.alloc_buffer((1,), "int32", scope="local")
        k[0] = 0
        for _step in range(n):
            if n > 4:
                k[0] = k[0] + 24
            else:
                k[0] = k[0] + 16
        A[k[0] + lane] = T.float32(0)

    assert found_in(main)["store A"].contiguity == (8,)


def test_lanes_that_leave_at_different_times_share_no_run() -> None:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((4096,), "float32"), lane: T.int32):
        k = T.alloc_buffer((1,), "int32", scope="local")
        k[0] = 0
        for _step in range(lane):
            k[0] = k[0] + 16
        A[k[0] + lane] = T.float32(0)
        A[k[0]] = T.float32(0)

    found = found_in(main)

    assert found["store A"] == AxisInfo((1,), (16,), (1,))


def test_while_keeps_what_every_round_keeps() -> None:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((4096,), "float32"), lane: T.int32):
        k = T.alloc_buffer((1,), "int32", scope="local")
        k[0] = 64
        while k[0] < 4096:
            A[k[0] + lane] = T.float32(0)
            k[0] = k[0] * 2

    assert found_in(main)["store A"].contiguity == (64,)


def test_chains_of_let_are_followed() -> None:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((4096,), "float32"), n: T.int32, lane: T.int32):
        row: T.let = n * 64
        base: T.let = row + 128
        A[base + lane] = T.float32(0)

    assert found_in(main)["store A"].contiguity == (64,)


def test_shared_memory_and_addresses_are_no_cells() -> None:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((4096,), "float32"), lane: T.int32):
        k = T.alloc_buffer((1,), "int32", scope="shared")
        p = T.alloc_buffer((1,), "int32", scope="local")
        k[0] = 16
        p[0] = 16
        T.evaluate(T.call_extern("void", "change", T.address_of(p[0])))
        A[k[0]] = T.float32(0)
        A[p[0]] = T.float32(0)

    found = [a for a in follow_all(main) if a.buffer.name == "A"]

    assert [a.indices[0] for a in found] == [AxisInfo.unknown()] * 2


def follow_all(func: tirx.PrimFunc) -> list[Any]:
    axis = (func.params[-1], tvm.ir.Range(0, 64))
    return follow(func.body, IndexAnalyzer([axis]))


def test_loops_over_an_axis_are_refused() -> None:
    loop = tirx.For(LANE, 0, 8, tirx.ForKind.SERIAL, tirx.Evaluate(LANE))

    with pytest.raises(LayoutError, match="Loop lane runs over an axis"):
        follow(loop, IndexAnalyzer(AXES))


def test_jumps_are_refused() -> None:
    with pytest.raises(LayoutError, match="Break cannot be followed"):
        follow(tirx.Break(), IndexAnalyzer(AXES))


def test_examples_in_the_documentation() -> None:
    assert doctest.testmod(index_flow) == doctest.TestResults(0, 7)
