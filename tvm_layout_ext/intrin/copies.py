"""Intrinsics that move a tile between shared memory and the registers of a warp.

Each lane names the address of its own row as an indexed access of the tile, so that a pass which
lays shared memory out anew, pads it or keeps several versions of it rewrites it like any load.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from ..gpu.hardware import MATRIX_ROW_BYTES, WARP_SIZE
from .fragments import operand_at, operand_place, sums_place

#: Rows of a matrix of ``ldmatrix``, and bytes of one of them.
ROWS, ROW_BYTES = 8, MATRIX_ROW_BYTES


def _load_description(
    matrix: str, dtype: str, bits: int, scope: str, registers: tuple[int, int], k_major: bool
) -> Any:
    rows, depth = ROWS * registers[0], ROW_BYTES * 8 // bits * registers[1]
    held = rows * depth // WARP_SIZE
    shape = (rows, depth) if k_major else (depth, rows)

    def place(i: Any, j: Any) -> Any:
        row, k = (i, j) if k_major else (j, i)
        return operand_place(matrix, bits, row, k, registers)

    @T.prim_func(s_tir=True)
    def description(tile_: T.handle, fragment_: T.handle) -> None:
        tile = T.match_buffer(tile_, shape, dtype, offset_factor=1, scope=scope)
        fragment = T.match_buffer(
            fragment_, (WARP_SIZE, held), dtype, offset_factor=1, scope="warp"
        )
        with T.sblock("root"):
            T.reads(tile[0 : shape[0], 0 : shape[1]])
            T.writes(fragment[0:WARP_SIZE, 0:held])
            for i, j in T.grid(*shape):
                with T.sblock("load"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    lane, element = T.meta_var(place(vi, vj))
                    T.reads(tile[vi, vj])
                    T.writes(fragment[lane, element])
                    fragment[lane, element] = tile[vi, vj]

    return description


def ldmatrix(
    matrix: str, dtype: str, bits: int, scope: str, registers: tuple[int, int], k_major: bool
) -> tuple[Any, Any]:
    """Describe and implement ``ldmatrix`` of a tile of an operand (``matrix``: ``a`` or ``b``).

    Lane ``l`` names the address of row ``l % 8`` of matrix ``l // 8`` (PTX ISA, "ldmatrix"). The
    instruction moves units of 16 bits, so an operand whose rows do not lie along K (``k_major``) is
    transposed only if its elements have 16 bits. ``registers`` counts matrices along the rows and
    along K; their product is 1, 2 or 4.
    """
    rows, depth = ROWS * registers[0], ROW_BYTES * 8 // bits * registers[1]
    count = registers[0] * registers[1]
    held = rows * depth // WARP_SIZE
    shape = (rows, depth) if k_major else (depth, rows)
    transposed = not k_major

    def corner(lane: Any) -> Any:
        which, row = lane // ROWS % count, lane % ROWS
        if matrix == "a":
            high, word = which % registers[0], which // registers[0]
        else:
            high, word = which // registers[1], which % registers[1]
        along_k = word * (ROW_BYTES * 8 // bits)
        return (ROWS * high + row, along_k) if k_major else (along_k + row, ROWS * high)

    @T.prim_func(s_tir=True)
    def implementation(tile_: T.handle, fragment_: T.handle) -> None:
        s0 = T.int32()
        s1 = T.int32()
        tile = T.match_buffer(tile_, shape, dtype, offset_factor=1, scope=scope, strides=[s0, s1])
        fragment = T.match_buffer(
            fragment_, (WARP_SIZE, held), dtype, offset_factor=1, scope="warp"
        )
        with T.sblock("root"):
            T.reads(tile[0 : shape[0], 0 : shape[1]])
            T.writes(fragment[0:WARP_SIZE, 0:held])
            for lane in T.thread_binding(0, WARP_SIZE, "threadIdx.x"):
                row, column = T.meta_var(corner(lane))
                T.evaluate(
                    T.ptx_legacy.ldmatrix(
                        transposed,
                        count,
                        ".b16",
                        fragment.data,
                        fragment.elem_offset + held * lane,
                        T.address_of(tile[row, column]),
                        0,
                        dtype=dtype,
                    )
                )

    return _load_description(matrix, dtype, bits, scope, registers, k_major), implementation


def fragment_load(
    matrix: str, dtype: str, bits: int, scope: str, registers: tuple[int, int], k_major: bool
) -> tuple[Any, Any]:
    """Describe and implement the load of a tile by plain loads of each lane.

    For operands that ``ldmatrix`` cannot transpose: 8 or 32 bits an element, rows not along K.
    Parameters as :func:`ldmatrix` has them.
    """
    rows, depth = ROWS * registers[0], ROW_BYTES * 8 // bits * registers[1]
    held = rows * depth // WARP_SIZE
    shape = (rows, depth) if k_major else (depth, rows)

    def at(lane: Any, element: Any) -> Any:
        row, k = operand_at(matrix, bits, lane, element, registers)
        return (row, k) if k_major else (k, row)

    @T.prim_func(s_tir=True)
    def implementation(tile_: T.handle, fragment_: T.handle) -> None:
        s0 = T.int32()
        s1 = T.int32()
        tile = T.match_buffer(tile_, shape, dtype, offset_factor=1, scope=scope, strides=[s0, s1])
        fragment = T.match_buffer(
            fragment_, (WARP_SIZE, held), dtype, offset_factor=1, scope="warp"
        )
        with T.sblock("root"):
            T.reads(tile[0 : shape[0], 0 : shape[1]])
            T.writes(fragment[0:WARP_SIZE, 0:held])
            for lane in T.thread_binding(0, WARP_SIZE, "threadIdx.x"):
                for element in T.unroll(held):
                    row, column = T.meta_var(at(lane, element))
                    fragment[lane, element] = tile[row, column]

    return _load_description(matrix, dtype, bits, scope, registers, k_major), implementation


def stmatrix(dtype: str, scope: str, row_major: bool) -> tuple[Any, Any]:
    """Describe and implement ``stmatrix.x4`` of a tile of 16 x 16 sums of 16 bits.

    The mirror of :func:`ldmatrix` (PTX ISA, "stmatrix"; sm_90 and later): register ``r`` of the
    warp is matrix ``r``, whose rows go to the addresses of lanes ``8 * r`` to ``8 * r + 7``. Rows
    of the tile in memory are rows of the sums (``row_major``), or ``.trans`` stores columns.
    """
    held = 8
    opcode = f"stmatrix.sync.aligned.m8n8.x4{'' if row_major else '.trans'}.shared.b16"

    def place(i: Any, j: Any) -> Any:
        return sums_place(i, j) if row_major else sums_place(j, i)

    def corner(lane: Any) -> Any:
        which, row = lane // ROWS, lane % ROWS
        down, right = ROWS * (which % 2), ROWS * (which // 2)
        return (down + row, right) if row_major else (right + row, down)

    def packed(low: Any, high: Any) -> Any:
        bits = [tirx.Cast("uint32", tirx.reinterpret("uint16", one)) for one in (low, high)]
        return bits[0] | (bits[1] << 16)

    @T.prim_func(s_tir=True)
    def description(fragment_: T.handle, tile_: T.handle) -> None:
        fragment = T.match_buffer(
            fragment_, (WARP_SIZE, held), dtype, offset_factor=1, scope="warp"
        )
        tile = T.match_buffer(tile_, (16, 16), dtype, offset_factor=1, scope=scope)
        with T.sblock("root"):
            T.reads(fragment[0:WARP_SIZE, 0:held])
            T.writes(tile[0:16, 0:16])
            for i, j in T.grid(16, 16):
                with T.sblock("store"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    lane, element = T.meta_var(place(vi, vj))
                    T.reads(fragment[lane, element])
                    T.writes(tile[vi, vj])
                    tile[vi, vj] = fragment[lane, element]

    @T.prim_func(s_tir=True)
    def implementation(fragment_: T.handle, tile_: T.handle) -> None:
        s0 = T.int32()
        s1 = T.int32()
        fragment = T.match_buffer(
            fragment_, (WARP_SIZE, held), dtype, offset_factor=1, scope="warp"
        )
        tile = T.match_buffer(
            tile_, (16, 16), dtype, offset_factor=1, scope=scope, strides=[s0, s1]
        )
        with T.sblock("root"):
            T.reads(fragment[0:WARP_SIZE, 0:held])
            T.writes(tile[0:16, 0:16])
            for lane in T.thread_binding(0, WARP_SIZE, "threadIdx.x"):
                row, column = T.meta_var(corner(lane))
                T.ptx[opcode](
                    T.address_of(tile[row, column]),
                    packed(fragment[lane, 0], fragment[lane, 1]),
                    packed(fragment[lane, 2], fragment[lane, 3]),
                    packed(fragment[lane, 4], fragment[lane, 5]),
                    packed(fragment[lane, 6], fragment[lane, 7]),
                )

    return description, implementation
