"""``mma.sync`` of every modelled type and shape, register by register, against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.programs import matrices as programs
from tests.programs.running import gives
from tvm_layout_ext.errors import NotModelled
from tvm_layout_ext.simulate import simulate

WARPS = 2
NUMPY = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "f32": np.dtype(np.float32),
    "s32": np.dtype(np.int32),
}
LEGACY = {"f16": "fp16", "f32": "fp32", "s8": "int8", "u8": "uint8", "s32": "int32"}
CASES = [
    *[(k, "f16", "f16", c) for k in (8, 16) for c in ("f16", "f32")],
    *[(k, "bf16", "bf16", "f32") for k in (8, 16)],
    *[(k, "tf32", "tf32", "f32") for k in (4, 8)],
    *[(k, a, b, "s32") for k in (16, 32) for a in ("s8", "u8") for b in ("s8", "u8")],
    *[
        (k, a, b, c)
        for k in (16, 32)
        for a in ("e4m3", "e5m2")
        for b in ("e4m3", "e5m2")
        for c in ("f16", "f32")
    ],
]


# The figures of the PTX ISA, "Matrix Fragments for mma.m16n8k*", as they are written there.


def a_element(k: int, bits: int, lane: int, i: int) -> tuple[int, int]:
    group, thread = lane >> 2, lane % 4
    if bits == 32:
        return (group if i in (0, 2) else group + 8), (thread if i < 2 else thread + 4)
    if bits == 16 and k == 8:
        return (group if i < 2 else group + 8), thread * 2 + (i & 1)
    if bits == 16:
        low = 0 <= i < 2 or 4 <= i < 6
        return (group if low else group + 8), thread * 2 + (i & 1) + (8 if i >= 4 else 0)
    if k == 16:
        return (group if i < 4 else group + 8), thread * 4 + (i & 3)
    low = 0 <= i < 4 or 8 <= i < 12
    return (group if low else group + 8), thread * 4 + (i & 3) + (16 if i >= 8 else 0)


def b_element(k: int, bits: int, lane: int, i: int) -> tuple[int, int]:
    group, thread = lane >> 2, lane % 4
    if bits == 32:
        return (thread if i == 0 else thread + 4), group
    if bits == 16:
        return thread * 2 + (i & 1) + (8 if i >= 2 else 0), group
    return thread * 4 + (i & 3) + (16 if i >= 4 else 0), group


def c_element(lane: int, i: int) -> tuple[int, int]:
    group, thread = lane >> 2, lane % 4
    return (group if i < 2 else group + 8), thread * 2 + (i & 1)


def spread(matrices: Any, element: Any, count: int) -> Any:
    """Elements ``[threads, count]`` of each warp's matrix."""
    return np.array(
        [
            [matrices[warp][element(lane, i)] for i in range(count)]
            for warp in range(len(matrices))
            for lane in range(32)
        ],
        matrices.dtype,
    )


def collect(elements: Any, element: Any, shape: tuple[int, int]) -> Any:
    """Each warp's matrix of its elements ``[threads, count]``."""
    found = np.zeros((len(elements) // 32, *shape), elements.dtype)
    for thread, row in enumerate(elements):
        for i, value in enumerate(row):
            found[thread // 32][element(thread % 32, i)] = value
    return found


def operand(name: str, shape: tuple[int, ...], seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if NUMPY[name].kind in "iu":
        info = np.iinfo(NUMPY[name])
        high = info.max if info.bits < 32 else 1 << 20
        return rng.integers(-high if info.min else 0, high, shape, dtype=NUMPY[name])
    return rng.standard_normal(shape).astype(NUMPY[name])


def tf32(values: Any) -> Any:
    return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def matrices(k: int, a: str, b: str, c: str) -> tuple[Any, Any, Any, Any]:
    """Random A, B and C of each warp, and D in exact arithmetic, rounded once."""
    A, B = operand(a, (WARPS, 16, k), 1), operand(b, (WARPS, k, 8), 2)
    C = operand(c, (WARPS, 16, 8), 3)
    left, right = (tf32(A), tf32(B)) if a == "tf32" else (A, B)
    wide = np.int64 if c == "s32" else np.float64
    total = left.astype(wide) @ right.astype(wide) + C.astype(wide)
    return A, B, C, total.astype(NUMPY[c])


def words(elements: Any) -> Any:
    return np.ascontiguousarray(elements).view(np.uint32)


@pytest.mark.matrix
@pytest.mark.parametrize(("k", "a", "b", "c"), CASES)
def test_table_mma(k: int, a: str, b: str, c: str) -> None:
    A, B, C, D = matrices(k, a, b, c)
    bits = NUMPY[a].itemsize * 8
    ra = words(spread(A, lambda lane, i: a_element(k, bits, lane, i), 16 * k // 32))
    rb = words(spread(B, lambda lane, i: b_element(k, bits, lane, i), 8 * k // 32))
    rc, expected = (spread(x, c_element, 4) for x in (C, D))
    carrier = "float32" if c == "f32" else "uint32"
    rc = rc if c == "f32" else words(rc)
    name = f"mma.sync.aligned.m16n8k{k}.row.col.{c}.{a}.{b}.{c}"
    program = programs.table_mma(name, (ra.shape[1], rb.shape[1], rc.shape[1]), carrier)
    report = simulate(program, ra, rb, rc, None)
    assert report.hazards == []
    got = np.ascontiguousarray(report.outputs["D"]).view(NUMPY[c])
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("k", "a", "b", "c"), CASES)
def test_legacy_mma_reads_arrays_of_any_type(k: int, a: str, b: str, c: str) -> None:
    A, B, C, D = matrices(k, a, b, c)
    bits = NUMPY[a].itemsize * 8
    types = tuple(str(NUMPY[t]) for t in (a, b, c))
    names = tuple(LEGACY.get(t, t) for t in (a, b, c))
    report = simulate(
        programs.legacy_mma(f"m16n8k{k}", types, names, k),
        spread(A, lambda lane, i: a_element(k, bits, lane, i), 16 * k // 32),
        spread(B, lambda lane, i: b_element(k, bits, lane, i), 8 * k // 32),
        spread(C, c_element, 4),
        None,
    )
    assert report.hazards == []
    np.testing.assert_array_equal(collect(report.outputs["D"], c_element, (16, 8)), D)


@pytest.mark.parametrize(("saturate", "expected"), [("", -(2**31)), ("satfinite.", 2**31 - 1)])
def test_integer_sums_wrap_or_saturate(saturate: str, expected: int) -> None:
    name = f"mma.sync.aligned.m16n8k16.row.col.{saturate}s32.s8.s8.s32"
    ones = np.full((64, 2), 0x00000001, np.uint32), np.full((64, 1), 0x00000001, np.uint32)
    C = np.full((64, 4), 2**31 - 4, np.uint32)
    # Four of the 16 products of each element are 1.
    report = simulate(programs.table_mma(name, (2, 1, 4), "uint32"), *ones, C, None)
    np.testing.assert_array_equal(report.outputs["D"].view(np.int32), expected)


def test_tf32_drops_the_lower_13_bits() -> None:
    name = "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32"
    below = np.float32(1 + 2**-10 - 2**-23).view(np.uint32)
    A, B = np.full((64, 2), below), np.full((64, 1), np.float32(1).view(np.uint32))
    C = np.zeros((64, 4), np.float32)
    gives(programs.table_mma(name, (2, 1, 4), "float32"), A, B, C, None, D=np.float32(4))


def test_sum_is_rounded_once() -> None:
    # 2**24 + 16 products of 2**-2: one after the other in f32, each would be lost.
    name = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    halves = np.full((64, 8), 0.5, np.float16).view(np.uint32)
    C = np.full((64, 4), 2**24, np.float32)
    program = programs.table_mma(name, (4, 2, 4), "float32")
    gives(program, halves, halves[:, :2].copy(), C, None, D=np.float32(2**24 + 4))


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32", (2, 2, 8)),
        ("mma.sync.aligned.m16n8k32.row.col.s32.s4.s4.s32", (2, 1, 4)),
    ],
)
def test_other_products_are_refused_by_name(name: str, sizes: tuple[int, int, int]) -> None:
    total = "float32" if ".f32." in name else "uint32"
    program = programs.table_mma(name, sizes, total)
    arrays = [np.zeros((64, n), np.uint32) for n in sizes[:2]]
    C = np.zeros((64, sizes[2]), total)
    with pytest.raises(NotModelled, match=name.replace(".", r"\.")):
        simulate(program, *arrays, C, None)
