"""Intrinsics that move a tile between shared memory and the registers of a warp.

Each lane names the address of its own row as an indexed access of the tile, so that a pass which
lays shared memory out anew, pads it or keeps several versions of it rewrites it like any load.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from ..gpu.hardware import WARP_SIZE
from .fragments import REGISTERS, operand_at, operand_place, operand_tile, sums_place, turned
from .instructions import Instruction

#: Rows of a matrix of ``ldmatrix``.
ROWS = 8


def load(one: Instruction, matrix: str, count: int, scope: str, k_major: bool) -> tuple[Any, Any]:
    """Describe and implement the load of a tile of an operand (``matrix``: ``a`` or ``b``).

    By ``ldmatrix`` lane ``l`` names the address of row ``l % 8`` of matrix ``l // 8`` (PTX ISA,
    "ldmatrix"), of ``count`` matrices. The instruction moves units of 16 bits, so an operand whose
    rows do not lie along K (``k_major``) is transposed only if its elements have 16 bits; others
    are loaded by plain loads of each lane.
    """
    registers, bits, dtype = REGISTERS[matrix, count], one.bits, one.operand
    shape = operand_tile(bits, registers, k_major)
    held = shape[0] * shape[1] // WARP_SIZE
    transposed, per_matrix = not k_major, held // count

    def place(i: Any, j: Any) -> Any:
        return operand_place(matrix, bits, *turned(i, j, k_major), registers)

    def at(lane: Any, element: Any) -> Any:
        return turned(*operand_at(matrix, bits, lane, element, registers), k_major)

    def matrices(tile: Any, fragment: Any, lane: Any) -> Any:
        first, second = at(0, lane // ROWS % count * per_matrix)
        own = (fragment.data, fragment.elem_offset + held * lane)
        row = T.address_of(tile[first + lane % ROWS, second])
        return T.ptx_legacy.ldmatrix(transposed, count, ".b16", *own, row, 0, dtype=dtype)

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
                if one.has_ldmatrix(k_major):
                    T.evaluate(matrices(tile, fragment, lane))
                else:
                    for element in T.unroll(held):
                        row, column = T.meta_var(at(lane, element))
                        fragment[lane, element] = tile[row, column]

    return description, implementation


def packed(low: Any, high: Any) -> Any:
    """Two elements of 16 bits in one register."""
    bits = [tirx.Cast("uint32", tirx.reinterpret("uint16", one)) for one in (low, high)]
    return bits[0] | (bits[1] << 16)


def stmatrix(dtype: str, scope: str, row_major: bool) -> tuple[Any, Any]:
    """Describe and implement ``stmatrix.x4`` of a tile of 16 x 16 sums of 16 bits.

    The mirror of ``ldmatrix`` (PTX ISA, "stmatrix"; sm_90 and later): register ``r`` of the
    warp is matrix ``r``, whose rows go to the addresses of lanes ``8 * r`` to ``8 * r + 7``. Rows
    of the tile in memory are rows of the sums (``row_major``), or ``.trans`` stores columns.
    """
    held = 8
    opcode = f"stmatrix.sync.aligned.m8n8.x4{'' if row_major else '.trans'}.shared.b16"

    def place(i: Any, j: Any) -> Any:
        return sums_place(*turned(i, j, row_major))

    def corner(lane: Any) -> Any:
        which, row = lane // ROWS, lane % ROWS
        down, right = ROWS * (which % 2), ROWS * (which // 2)
        return (down + row, right) if row_major else (right + row, down)

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
