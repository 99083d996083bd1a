"""Small problems in the TE style, each with a schedule that nothing was said to yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm_layout_ext import te


def elementwise(
    n: Any = 64, m: Any = 64, rule: Callable[[Any], Any] = lambda a: a
) -> tuple[Any, Any, Any]:
    """B of ``rule`` of each element of A, n by m: A, B and the schedule."""
    A = te.placeholder((n, m), name="A")
    B = te.compute((n, m), lambda i, j: rule(A[i, j]), name="B")
    return A, B, te.create_schedule(B.op)


def chain(n: Any = 8, m: Any = 8) -> tuple[Any, Any, Any, Any]:
    """C of B + B, and B of A + 1, element by element: A, B, C and the schedule."""
    A, B, _ = elementwise(n, m, lambda a: a + 1.0)
    C = te.compute((n, m), lambda i, j: B[i, j] * 2.0, name="C")
    return A, B, C, te.create_schedule(C.op)


def row_sum(n: int = 10, m: int = 12) -> tuple[Any, Any, Any, Any]:
    """B, the sums of the rows of A: A, B, the axis of the sum, and the schedule."""
    A = te.placeholder((n, m), name="A")
    k = te.reduce_axis((0, m), "k")
    B = te.compute((n,), lambda i: te.sum(A[i, k], axis=k), name="B")
    return A, B, k, te.create_schedule(B.op)


def product(n: int = 8, depth: int = 16) -> tuple[Any, Any, Any, Any, Any]:
    """C = A @ B, n by n: A, B, C, the axis of the sum, and the schedule."""
    A, B = te.placeholder((n, depth), name="A"), te.placeholder((depth, n), name="B")
    k = te.reduce_axis((0, depth), "k")
    C = te.compute((n, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    return A, B, C, k, te.create_schedule(C.op)
