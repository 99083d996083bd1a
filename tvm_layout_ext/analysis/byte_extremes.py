"""Find loops in which a thread keeps the larger or the smaller of bytes that registers have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from ..ir.conditions import step_of
from ..ir.queries import are_equal, depends_on, is_load_of, loads_in, substitute

#: Since this capability halves of words are compared by one instruction.
SINCE = (9, 0)
_KINDS = {"int8": "s", "uint8": "u"}
_WORD_BYTES = 4


@dataclass(frozen=True)
class ByteExtremes:
    """A loop over neighbouring bytes, of which each goes into a result."""

    best: Any  #: Registers of the results
    first: Any  #: Result of the first byte
    own: bool  #: Whether each byte has a result of its own
    source: Any  #: Registers of the bytes
    start: Any  #: The first of them
    count: int
    condition: Any  #: That the loop runs under; None if it always does
    is_max: bool

    @property
    def kind(self) -> str:
        """How instructions name the sign of the type: ``s`` or ``u``."""
        return _KINDS[str(self.best.dtype)]


def is_byte_extreme(store: Any) -> bool:
    """Whether a store takes the larger or smaller of a byte and what is there."""
    value = store.value
    return (
        isinstance(value, tirx.Max | tirx.Min)
        and str(value.ty) in _KINDS
        and any(is_load_of(side, store.buffer) for side in (value.a, value.b))
    )


def read_byte_extremes(loop: Any) -> ByteExtremes | None:
    """Read a loop of constant extent; None if it does anything else."""
    store, condition = loop.body, None
    if isinstance(store, tirx.IfThenElse) and store.else_case is None:
        store, condition = store.then_case, store.condition
    is_plain = isinstance(store, tirx.BufferStore) and is_byte_extreme(store)
    if not is_plain or not isinstance(loop.extent, tirx.IntImm) or int(loop.extent) % _WORD_BYTES:
        return None
    if condition is not None and depends_on(condition, loop.loop_var):
        return None
    # Whatever else reads the result is to have it as it is before each byte.
    if sum(is_load_of(load, store.buffer) for load in loads_in(loop)) != 1:
        return None
    sides = store.value.a, store.value.b
    held, given = sides if is_load_of(sides[0], store.buffer) else sides[::-1]
    if not isinstance(given, tvm.ir.TensorLoad) or not are_equal(held.indices, store.indices):
        return None
    steps = [step_of(one.indices[0], loop.loop_var) for one in (store, given)]
    scopes = [buffer.scope() for buffer in (store.buffer, given.source)]
    if steps[0] not in (0, 1) or steps[1] != 1 or scopes != ["local", "local"]:
        return None
    zero = {loop.loop_var: loop.min}
    first, start = (substitute(at, zero) for at in (store.indices[0], given.indices[0]))
    if not all(map(_is_aligned, [start, *[first] * (steps[0] == 1)])):
        return None
    return ByteExtremes(
        store.buffer,
        first,
        steps[0] == 1,
        given.source,
        start,
        int(loop.extent),
        condition,
        isinstance(store.value, tirx.Max),
    )


def _is_aligned(index: Any) -> bool:
    """Whether a byte is the first of a word."""
    known = tvm.sym.Analyzer().modular_set(index)
    return known.coeff % _WORD_BYTES == 0 and known.base % _WORD_BYTES == 0
