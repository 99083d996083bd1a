"""What a kernel may do before the kernels before it have ended: read what nothing writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tvm import tirx

from ...ir.queries import is_among, is_global, is_pure, loads_in, nodes_in, variables


def names_one_of(value: Any, others: Iterable[Any]) -> bool:
    """Whether one of these variables and buffers occurs in a value, as in a pointer to it."""
    return any(is_among(one, others) for one in variables(value))


def views_of(body: Any, origins: Sequence[Any]) -> list[Any]:
    """Pointers and buffers, and the buffers that a function declares of their memory."""
    found = list(origins)
    for view in nodes_in(body, tirx.DeclBuffer):
        if names_one_of(view.data, found):
            found.append(view.buffer)
    return found


def put_behind_constants(
    body: Any, pointers: Sequence[Any], statements: Sequence[Any]
) -> Any | None:
    """Put statements before the first that touches more memory than constants and a block's own.

    All threads of a kernel come to them: they stand in no loop and no branch. So a product's
    weights are in registers when the kernel before it ends, for which ``griddepcontrol.wait`` in
    ``statements`` waits. None if a kernel begins with no load of a constant.

    Parameters
    ----------
    body : tirx.Stmt
        Of a kernel.
    pointers : sequence of tirx.Var
        Parameters that point to what no kernel ever writes.
    """
    if not pointers:
        return None
    constants = views_of(body, pointers)
    before: list[Any] = []

    def is_early(part: Any) -> bool:
        if isinstance(part, tirx.DeclBuffer | tirx.AllocBuffer):
            return True
        touched = [one.source for one in loads_in(part)]
        touched += [one.buffer for one in nodes_in(part, tirx.BufferStore)]
        outside = (one for one in touched if is_global(one))
        return is_pure(part) and all(is_among(one, constants) for one in outside)

    def put(part: Any) -> Any:
        if isinstance(part, tirx.AttrStmt):
            return tirx.AttrStmt(part.node, part.attr_key, part.value, put(part.body))
        if not isinstance(part, tirx.SeqStmt):
            return tirx.SeqStmt([*statements, part])
        parts = list(part.seq)
        at = next((n for n, one in enumerate(parts) if not is_early(one)), len(parts) - 1)
        before.extend(parts[:at])
        return tirx.SeqStmt([*parts[:at], put(parts[at]), *parts[at + 1 :]])

    changed = put(body)
    loaded = (one.source for part in before for one in loads_in(part))
    return changed if any(is_among(one, constants) for one in loaded) else None
