"""The order of the operations of a computation."""

from __future__ import annotations

from collections.abc import Iterable

from tvm import te


def in_order(outputs: Iterable[te.Operation]) -> list[te.Operation]:
    """List outputs and everything they need, producers first, in TVM's own depth-first order."""
    order: dict[te.Operation, None] = {}
    # Iterative: chains of a thousand operations would exceed Python's recursion limit.
    for output in outputs:
        stack = [(output, False)]
        while stack:
            op, ready = stack.pop()
            if op in order:
                continue
            if ready:
                order[op] = None
                continue
            stack.append((op, True))
            stack.extend((tensor.op, False) for tensor in reversed(list(op.input_tensors)))
    return list(order)
