"""Intrinsics that multiply fragments in registers, and that clear the sums."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from ..gpu.hardware import WARP_SIZE
from .fragments import operand_place, sums_place
from .instructions import Instruction

_LEGACY_SUMS = {"float32": "fp32", "float16": "fp16", "int32": "int32"}
#: Sums of a tile of 16 x 16 that a lane holds.
HELD = 8


def multiply(one: Instruction) -> tuple[Any, Any]:
    """Describe and implement the product of two fragments, added to a tile of 16 x 16 sums.

    B is taken by its columns, ``n`` first. The implementation is the instruction on the left and on
    the right half of the tile.
    """
    m, n, depth = one.shape
    bits, operand, sums = one.bits, one.operand, one.sums
    held = m * depth // WARP_SIZE
    shape, legacy, legacy_sums = one.ptx_shape, one.legacy, _LEGACY_SUMS[one.sums]

    def widened(value: Any) -> Any:
        return value if operand == sums else tirx.Cast(sums, value)

    def half(a: Any, b: Any, c: Any, lane: Any, right: int) -> Any:
        starts = [lane * held, lane * held + right * held // 2, lane * HELD + right * HELD // 2]
        pointers = [
            part
            for buffer, start in zip((a, b, c), starts, strict=True)
            for part in (buffer.data, buffer.elem_offset + start)
        ]
        types = (legacy, legacy, legacy_sums)
        return T.ptx_legacy.mma(shape, "row", "col", *types, *pointers, False, dtype=sums)

    @T.prim_func(s_tir=True)
    def description(a_: T.handle, b_: T.handle, c_: T.handle) -> None:
        A = T.match_buffer(a_, (WARP_SIZE, held), operand, offset_factor=1, scope="warp")
        B = T.match_buffer(b_, (WARP_SIZE, held), operand, offset_factor=1, scope="warp")
        C = T.match_buffer(c_, (WARP_SIZE, HELD), sums, offset_factor=1, scope="warp")
        with T.sblock("root"):
            T.reads(C[0:WARP_SIZE, 0:HELD], A[0:WARP_SIZE, 0:held], B[0:WARP_SIZE, 0:held])
            T.writes(C[0:WARP_SIZE, 0:HELD])
            for i, j, k in T.grid(m, n, depth):
                with T.sblock("multiply"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    c_lane, c_element = T.meta_var(sums_place(vi, vj))
                    a_lane, a_element = T.meta_var(operand_place("a", bits, vi, vk))
                    b_lane, b_element = T.meta_var(operand_place("b", bits, vj, vk))
                    T.reads(C[c_lane, c_element], A[a_lane, a_element], B[b_lane, b_element])
                    T.writes(C[c_lane, c_element])
                    C[c_lane, c_element] += widened(A[a_lane, a_element]) * widened(
                        B[b_lane, b_element]
                    )

    @T.prim_func(s_tir=True)
    def implementation(a_: T.handle, b_: T.handle, c_: T.handle) -> None:
        A = T.match_buffer(a_, (WARP_SIZE, held), operand, offset_factor=1, scope="warp")
        B = T.match_buffer(b_, (WARP_SIZE, held), operand, offset_factor=1, scope="warp")
        C = T.match_buffer(c_, (WARP_SIZE, HELD), sums, offset_factor=1, scope="warp")
        with T.sblock("root"):
            T.reads(C[0:WARP_SIZE, 0:HELD], A[0:WARP_SIZE, 0:held], B[0:WARP_SIZE, 0:held])
            T.writes(C[0:WARP_SIZE, 0:HELD])
            for lane in T.thread_binding(0, WARP_SIZE, "threadIdx.x"):
                T.evaluate(half(A, B, C, lane, 0))
                T.evaluate(half(A, B, C, lane, 1))

    return description, implementation


def clear(dtype: str) -> tuple[Any, Any]:
    """Describe and implement setting a tile of 16 x 16 sums to zero."""
    zero = tirx.const(0, dtype)

    @T.prim_func(s_tir=True)
    def description(c_: T.handle) -> None:
        C = T.match_buffer(c_, (WARP_SIZE, HELD), dtype, offset_factor=1, scope="warp")
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:WARP_SIZE, 0:HELD])
            for i, j in T.grid(16, 16):
                with T.sblock("clear"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    lane, element = T.meta_var(sums_place(vi, vj))
                    T.reads()
                    T.writes(C[lane, element])
                    C[lane, element] = zero

    @T.prim_func(s_tir=True)
    def implementation(c_: T.handle) -> None:
        C = T.match_buffer(c_, (WARP_SIZE, HELD), dtype, offset_factor=1, scope="warp")
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:WARP_SIZE, 0:HELD])
            for lane in T.thread_binding(0, WARP_SIZE, "threadIdx.x"):
                for element in T.unroll(HELD):
                    C[lane, element] = zero

    return description, implementation
