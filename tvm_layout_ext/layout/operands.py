"""Shared layouts for the operands of tensor-core multiplications."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..errors import LayoutError
from .banks import ROW_BITS
from .base import check_power_of_two, integers
from .shared import NVMMASharedLayout, SwizzledSharedLayout


def shared_for_mma_sync(
    operand_index: int,
    shape: Sequence[int],
    order: Sequence[int],
    element_bits: int,
    k_width: int,
    *,
    transposed: bool = False,
) -> SwizzledSharedLayout:
    """Choose the swizzle with which ``ldmatrix`` or plain loads fetch an operand without conflicts.

    Parameters
    ----------
    operand_index : int
        0 for A (M x K), 1 for B (K x N).
    shape : sequence of int
        Shape of the tile as stored.
    order : sequence of int
        Its dims, the contiguous one first.
    element_bits : int
        Bits of an element.
    k_width : int
        Neighbouring elements along K that a lane holds, see :class:`DotOperandLayout`.
    transposed : bool
        The stored tile is transposed before it is multiplied.

    Examples
    --------
    Half precision, rows of 32 elements: 64 bytes, so two rows fill the banks and share a phase.

    >>> shared_for_mma_sync(0, [64, 32], [1, 0], 16, 2)
    SwizzledShared(vec=8, per_phase=2, max_phase=4, order=[1, 0])
    """
    check_power_of_two("element_bits", element_bits, 8, 64)
    check_power_of_two("k_width", k_width)
    _check_operand(operand_index, shape, order)
    along_k, across = 4 * k_width, 4 if element_bits == 64 else 8
    k_dim = len(shape) - 1 - operand_index
    if transposed != (order[0] != k_dim):
        along_k, across = across, along_k
    per_phase = max(ROW_BITS // (element_bits * shape[order[0]]), 1)
    max_phase = max(min(across, ROW_BITS // (along_k * element_bits)) // per_phase, 1)
    return SwizzledSharedLayout(along_k, per_phase, max_phase, tuple(order))


def shared_for_wgmma(
    shape: Sequence[int], order: Sequence[int], element_bits: int
) -> NVMMASharedLayout:
    """Choose the widest hardware swizzle that the contiguous dim of a stored tile can fill.

    Parameters as of :func:`shared_for_mma_sync`; :func:`wgmma_order` tells which order may be.
    """
    check_power_of_two("element_bits", element_bits, 8, 64)
    _check_operand(0, shape, order)
    row_bytes = shape[order[0]] * element_bits // 8
    rows = prod(shape) // shape[order[0]]
    fitting = [width for width in (128, 64, 32) if row_bytes % width == 0]
    width = fitting[0] if fitting and len(shape) > 1 and rows >= 8 else 0
    return NVMMASharedLayout(width, element_bits, len(shape), order[0] == 0 and len(shape) > 1)


def wgmma_order(
    operand_index: int, order: Sequence[int], element_bits: int, *, transposed: bool = False
) -> tuple[int, ...]:
    """Tell in which order an operand must be stored for ``wgmma``.

    Only 16-bit operands may be contiguous along either dim; all others must be along K. Parameters
    as of :func:`shared_for_mma_sync`; ``order`` is that in which the tile was loaded.
    """
    check_power_of_two("element_bits", element_bits, 8, 64)
    _check_operand(operand_index, [1, 1], order)
    if element_bits == 16:
        return tuple(order)
    k_is_last = (operand_index == 0) != transposed
    return (1, 0) if k_is_last else (0, 1)


def _check_operand(operand_index: int, shape: Sequence[int], order: Sequence[int]) -> None:
    if type(operand_index) is not int or operand_index not in (0, 1):
        raise LayoutError(f"operand_index is {operand_index}; it must be 0 (A) or 1 (B).")
    integers("The shape", shape)
    integers("order", order)
    if not shape or sorted(order) != list(range(len(shape))):
        raise LayoutError(f"order {list(order)} is no permutation of the dims of {list(shape)}.")
    for size in shape:
        check_power_of_two("A size of the tile", size)
