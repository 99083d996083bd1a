"""Claims about TIR expressions, against every value that they can take, wrapping included."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import tirx

from tvm_layout_ext.analysis.assumptions import Assumptions, Prover, divisible
from tvm_layout_ext.analysis.axis_info import indices
from tvm_layout_ext.analysis.axis_info.indices import IndexAnalyzer
from tvm_layout_ext.analysis.axis_info.values import AxisInfo

ROW, J, N, M, U = (tirx.Var(name, "int32") for name in "ijnmu")
LONG = tirx.Var("long", "int64")
FREE = {N: 16, M: 1, U: 1, LONG: 4}
V8 = tirx.Var("v8", "int8")


class UndefinedError(Exception):
    """The expression divides by zero, or shifts by what is no shift, somewhere."""


def values_of(node: Any, env: dict[Any, np.ndarray]) -> np.ndarray:
    """Evaluate an expression for every element, wrapping as the types say."""
    kind = type(node)
    if kind is tirx.IntImm:
        return np.array(int(node.value))
    if kind is tirx.Var:
        return env[node]
    if kind is tirx.Cast:
        return wrapped(values_of(node.value, env), node)
    if kind is tirx.Let:
        return values_of(node.body, {**env, node.var: values_of(node.value, env)})
    if kind is tirx.Select:
        parts = (node.condition, node.true_value, node.false_value)
        return np.where(*(values_of(part, env) for part in parts))
    left, right = values_of(node.a, env), values_of(node.b, env)
    return wrapped(OPERATIONS[kind](left, right), node)


def wrapped(values: np.ndarray, node: Any) -> np.ndarray:
    name = str(node.ty).partition("x")[0]
    return (values != 0 if name == "bool" else values.astype(name)).astype(np.int64)


def divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if (b == 0).any():
        raise UndefinedError
    return a // b


def truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return divided(np.abs(a), np.abs(b)) * np.sign(a) * np.sign(b)


def shifted(operation: Any) -> Any:
    def apply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if ((b < 0) | (b > 31)).any():
            raise UndefinedError
        return operation(a, b)

    return apply


OPERATIONS: dict[type, Any] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: divided,
    tirx.FloorMod: lambda a, b: a - b * divided(a, b),
    tirx.Div: truncated,
    tirx.Mod: lambda a, b: a - b * truncated(a, b),
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.BitwiseAnd: np.bitwise_and,
    tirx.BitwiseOr: np.bitwise_or,
    tirx.BitwiseXor: np.bitwise_xor,
    tirx.LShift: shifted(np.left_shift),
    tirx.RShift: shifted(np.right_shift),
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
}
ARITHMETIC = [
    k for k in OPERATIONS if k.__name__ not in ("LT", "LE", "GT", "GE", "EQ", "NE", "And", "Or")
]
COMPARISONS = [tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE]
NUMBERS = [-16, -3, -1, 0, 1, 2, 3, 4, 7, 8, 12, 16, 31, 32, 1 << 20]


def leaves() -> st.SearchStrategy[Any]:
    variables = st.sampled_from([ROW, J, N, M, U])
    numbers = st.sampled_from(NUMBERS).map(lambda n: tirx.IntImm("int32", n))
    narrow = st.just(LONG.astype("int32"))
    return st.one_of(variables, variables, numbers, narrow)


def nodes(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def binary(kind: Any, a: Any, b: Any) -> Any:
        return kind(a, b)

    def select(kind: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        return tirx.Select(kind(a, b), c, d)

    def let(value: Any, kind: Any, other: Any) -> Any:
        variable = tirx.Var("v", "int32")
        return tirx.Let(variable, value, kind(variable, other))

    def cast(value: Any, between: str) -> Any:
        return tirx.Cast("int32", tirx.Cast(between, value))

    kinds = st.sampled_from(ARITHMETIC)
    return st.one_of(
        st.builds(binary, kinds, children, children),
        st.builds(binary, kinds, children, children),
        st.builds(select, st.sampled_from(COMPARISONS), children, children, children, children),
        st.builds(let, children, kinds, children),
        st.builds(cast, children, st.sampled_from(["int8", "uint8", "int64", "uint32"])),
    )


EXPRESSIONS = st.recursive(leaves(), nodes, max_leaves=7)


def check(info: AxisInfo, values: np.ndarray) -> None:
    """Every claim holds of every aligned group, the last one perhaps cut off."""
    if info.constant is not None:
        assert (values == info.constant).all(), "constant"
    for axis, size in enumerate(values.shape):
        lines = np.moveaxis(values, axis, -1).reshape(-1, size)
        for run, step, what in (
            (info.contiguity[axis], 1, "run"),
            (info.constancy[axis], 0, "group"),
        ):
            inner = np.arange(1, size) % run != 0
            assert (np.diff(lines, axis=-1)[:, inner] == step).all(), what
        first = lines[:, :: info.contiguity[axis]]
        assert (first % min(info.divisibility[axis], 1 << 31) == 0).all(), "divisibility"


EXTREME = st.sampled_from([-(1 << 31), (1 << 31) - 16, 0, 16, 1 << 30])


@given(st.data())
def test_claims_hold_for_every_value(data: st.DataObject) -> None:
    """Ten expressions a draw, each at several values of what is free that keep the promises."""
    for _ in range(10):
        one_expression(data)


def one_expression(data: st.DataObject) -> None:
    expression = data.draw(EXPRESSIONS)
    extents = data.draw(st.sampled_from([(4, 16), (5, 33), (1, 64), (16, 7), (8, 8)]))
    start = data.draw(st.sampled_from([0, 0, 8, 3, -4]))
    bound = data.draw(st.sampled_from(["", "range", "promise"]))
    axes = [(ROW, tvm.ir.Range(0, extents[0])), (J, tvm.ir.Range(start, start + extents[1]))]
    ranges = {U: tvm.ir.Range(0, 100), **({N: tvm.ir.Range(0, 256)} if bound == "range" else {})}
    promises = [divisible(v, d) for v, d in FREE.items() if d > 1]
    promises += [N >= 0, N <= 255] if bound == "promise" else []
    told = Assumptions(tuple(promises))
    info = IndexAnalyzer(axes, ranges, told).info(expression)
    rows, columns = np.indices(extents)
    for _ in range(3):
        env = {ROW: rows, J: columns + start}
        for variable, divisor in FREE.items():
            most = 100 if variable is U else 256 if variable is N and bound else 1 << 31
            number = data.draw(EXTREME if most > 256 else st.integers(0, most - 1))
            env[variable] = np.full(extents, number // divisor * divisor)
        try:
            found = np.broadcast_to(values_of(expression, env), extents)
        except UndefinedError:
            continue
        check(info, found)


def least_of(kind: str) -> Any:
    """The least number of a signed type, out of TVM's sight so that it folds nothing."""
    return tirx.Select(J == J, tirx.IntImm(kind, -128), tirx.IntImm(kind, -128))


def analyse(expression: Any, *conditions: Any) -> AxisInfo:
    axes = [(ROW, tvm.ir.Range(0, 32)), (J, tvm.ir.Range(0, 128))]
    ranges, told = {U: tvm.ir.Range(0, 4096)}, Assumptions(conditions)
    return IndexAnalyzer(axes, ranges, told).info(expression)


@pytest.mark.parametrize(
    ("expression", "contiguity", "divisibility"),
    [
        (ROW * 128 + J, (1, 128), (1, 128)),
        (J * 32 + ROW, (32, 1), (32, 1)),
        (ROW * U + J, (1, 128), (1, 1)),
        ((tirx.floordiv(J, 8) ^ tirx.floormod(ROW, 8)) * 8 + tirx.floormod(J, 8), (1, 8), (1, 8)),
        (J ^ (ROW * 16), (1, 16), (1, 16)),
        (tirx.truncmod(J, 16), (1, 16), (1, 16)),
        (J & 15, (1, 16), (1, 16)),
        (tirx.Select(J < 64, J, J + 32), (1, 64), (1, 32)),
        (tirx.truncdiv(J - 64, 16) * 16, (1, 1), (16, 16)),
    ],
)
def test_what_kernels_rely_on_is_found(
    expression: Any, contiguity: tuple[int, ...], divisibility: tuple[int, ...]
) -> None:
    info = analyse(expression)
    assert info.contiguity == contiguity
    assert all(found >= least for found, least in zip(info.divisibility, divisibility, strict=True))


def test_truncation_of_negative_numbers_claims_no_groups() -> None:
    assert analyse(tirx.truncdiv(J - 8, 16)).constancy == (32, 1)
    assert analyse(tirx.floordiv(J - 16, 16)).constancy == (32, 16)


def test_sums_that_may_wrap_keep_only_aligned_runs() -> None:
    assert analyse(N * 4 + J).contiguity == (1, 4)
    assert analyse(N + J, divisible(N, 64)).contiguity == (1, 64)
    assert analyse(N.astype("int64") + J.astype("int64")).contiguity == (1, 128)


def test_sums_of_64_bits_without_bounds_may_wrap_too() -> None:
    """TVM ends bounds at 2^63 - 1: a sum of what has none looked as if it stayed in its type."""
    column, unsigned = J.astype("int64"), tirx.Var("unsigned", "uint64")
    assert analyse(LONG + column).contiguity == (1, 1)
    assert analyse(LONG * 8 + column).contiguity == (1, 8)
    assert analyse(unsigned.astype("int64") + column).contiguity == (1, 1)
    axes = [(ROW, tvm.ir.Range(0, 32)), (J, tvm.ir.Range(0, 128))]
    bounded = IndexAnalyzer(axes, {LONG: tvm.ir.Range(0, tirx.IntImm("int64", 1 << 62))})
    assert bounded.info(LONG + column).contiguity == (1, 128)


def test_symbolic_extents_are_long() -> None:
    info = IndexAnalyzer([(J, tvm.ir.Range(0, N))]).info(J)
    assert info.contiguity[0] >= 1 << 20


def test_loads_repeat_where_their_indices_do() -> None:
    buffer = tirx.decl_buffer((32,), "int32")
    assert analyse(buffer[ROW]).constancy == (1, 128)
    assert analyse(buffer[ROW] * 128 + J).contiguity == (1, 128)


def test_examples_in_the_documentation() -> None:
    assert doctest.testmod(indices) == doctest.TestResults(0, 4)


def test_of_vectors_nothing_is_known() -> None:
    assert analyse(tirx.Ramp(J * 4, 1, 4)) == AxisInfo.unknown(2)


def test_memory_of_a_thread_need_not_repeat() -> None:
    mine = tirx.decl_buffer((1,), "int32", scope="local")
    assert analyse(mine[0]) == AxisInfo.unknown(2)


def promised(*conditions: Any) -> IndexAnalyzer:
    axes = [(ROW, tvm.ir.Range(0, 32)), (J, tvm.ir.Range(0, 128))]
    return IndexAnalyzer(axes, assumptions=Assumptions(conditions))


def test_assumptions_divide_and_bound() -> None:
    row = ROW * N + J
    assert promised().info(row).contiguity == (1, 1)
    assert promised(divisible(N, 16)).info(row).contiguity == (1, 16)
    bounded = promised(divisible(N, 16), N >= 0, N <= 4096)
    assert bounded.info(row).contiguity == (1, 128)
    assert bounded.info(tirx.truncmod(N + J, 16)).contiguity == (1, 16)


def test_assumptions_about_products_prove_nothing() -> None:
    """N * 4 == 4 holds of N = 2^30 + 1 too, because it wraps; TVM would conclude that it cannot."""
    product = N * 4
    prover = Prover((product >= 0, product <= 100))
    assert prover.analyzer.const_int_bound(product).max_value > 100
    assert Prover((N >= 0, N <= 25)).analyzer.const_int_bound(product).max_value == 100


@pytest.mark.parametrize(
    ("name", "expression", "contiguity", "divisor"),
    [
        ("chunks of a row by its row", ((J // 8) ^ (ROW % 8)) * 8 + J % 8, (1, 8), 8),
        ("low bits untouched", J ^ (ROW * 16), (1, 16), 16),
        ("a constant above the run", J ^ 64, (1, 64), 64),
        ("a constant inside the run", J ^ 4, (1, 4), 4),
        ("both divisible", (J * 8) ^ (ROW * 4), (1, 1), 4),
        ("by 0", J ^ 0, (1, 128), 128),
        ("twice", (J ^ (ROW * 16)) ^ (ROW * 32), (1, 16), 16),
        ("of a symbolic row", J ^ (N * 32), (1, 32), 32),
        ("after a shift", J ^ (ROW << 3), (1, 8), 8),
        ("under or", (J ^ (ROW * 8)) | (ROW * 32), (1, 8), 8),
    ],
)
def test_xor_where_tvm_gives_up(
    name: str, expression: Any, contiguity: tuple[int, int], divisor: int
) -> None:
    """TVM's modular sets and bounds know nothing of these, ``name`` says why one should."""
    theirs = tvm.sym.Analyzer()
    for variable, extent in ((ROW, 32), (J, 128)):
        theirs.bind(variable, tvm.ir.Range(0, extent))
    ours = analyse(expression)
    if isinstance(expression, tirx.BitwiseXor | tvm.ir.Call):
        assert int(theirs.modular_set(expression).coeff) == 1, name
    assert ours.contiguity == contiguity, name
    assert ours.divisibility[1] >= divisor, name


def test_bounds_are_not_trusted_past_arithmetic_that_wraps() -> None:
    """40000 * 65536 is negative in 32 bits, though no factor is: truncation then goes upwards."""
    expression = tirx.truncmod(N * 65536 + J, 16)
    axes = [(ROW, tvm.ir.Range(0, 32)), (J, tvm.ir.Range(0, 128))]
    info = IndexAnalyzer(axes, {N: tvm.ir.Range(0, 65536)}).info(expression)
    small = IndexAnalyzer(axes, {N: tvm.ir.Range(0, 1024)}).info(expression)
    assert info.contiguity == (1, 1)
    assert small.contiguity == (1, 16)


@pytest.mark.parametrize(
    "expression",
    [
        lambda: tirx.FloorDiv(J, N - N + 0),
        lambda: tirx.FloorMod(J, tirx.Select(J < 4, 0, 0)),
        lambda: tirx.LShift(J, N),
        lambda: tirx.Let(V8, tirx.Mod(J.astype("int8"), least_of("int8")), V8.astype("int32")),
    ],
)
def test_what_tvm_cannot_simplify_does_not_crash(expression: Any) -> None:
    assert analyse(expression()).contiguity == (1, 1)
