"""What no rule but that for tensor cores takes: products of several rows and columns."""

from __future__ import annotations

from tvm import tirx

from ..analysis.contraction import read_contraction
from ..errors import ScheduleError
from ..tune.space.functions import blocks_of
from ..tune.space.off_tensor_cores import is_product


def refuse_matrices(func: tirx.PrimFunc) -> None:
    """Raise ScheduleError for a product of several rows and columns.

    As a sum it would read each element of an operand once for each row, or column, of the other.
    """
    for _, block in blocks_of(func):
        if not is_product(block):
            continue
        m, n, _ = read_contraction(block).sizes
        if min(m, n) > 1:
            raise ScheduleError(
                f"Block {block.name_hint} multiplies {m} rows by {n} columns; as a sum it would "
                "read its operands again and again."
            )
