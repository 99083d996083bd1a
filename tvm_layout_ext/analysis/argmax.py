"""Find the registers in which threads keep an extreme value and its index, and what changes them.

What ``argmax`` does for an element is four statements, however its block was mapped::

    i = T.Select(best[0] > x or (best[0] == x and at[0] < k), at[0], k)
    v = T.Select(best[0] > x, best[0], x)
    at[0] = i
    best[0] = v
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize

from ..ir import ops
from ..ir.conditions import ranges_known
from ..ir.pointers import OPAQUE
from ..ir.queries import are_equal, is_among, is_call_of, is_load_of, loads_in, nodes_in, variables

#: Bits of a value by its type: few enough to leave room for an index in 32.
VALUE_BITS = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16}
WORD_BITS = 32
#: Types of indices.
INDICES = ("int32", "int64")
_AHEAD = {tirx.GT: tirx.LT, tirx.LT: tirx.GT}
_STATEMENTS = 4
#: What gives a lane the index that another lane has.
_SHUFFLES = (
    ops.CUDA___SHFL_SYNC,
    ops.CUDA___SHFL_XOR_SYNC,
    ops.CUDA___SHFL_UP_SYNC,
    ops.CUDA___SHFL_DOWN_SYNC,
)
#: Instructions of an element as one number: a permutation, and at most a maximum.
_PACKED = 2


@dataclass(frozen=True)
class Update:
    """An element that takes part: its value and index, and which it is to be."""

    best: Any  #: Buffer of values
    at: Any  #: Buffer of indices
    indices: Any  #: Into both
    value: Any
    index: Any
    is_max: bool
    is_first: bool  #: Whether of equal values the lower index stays
    names: Any  #: Variables that its statements bind


@dataclass(frozen=True)
class Start:
    """What both buffers begin with, or go on with."""

    best: Any
    at: Any
    indices: Any
    value: Any
    index: Any


@dataclass
class BestPair:
    """Two buffers that are only changed together."""

    best: Any
    at: Any
    updates: list[Update] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)

    def add(self, one: Update | Start) -> None:
        """Note what changes both."""
        if isinstance(one, Update):
            self.updates.append(one)
        else:
            self.starts.append(one)


def read_update(statements: Any) -> Update | None:
    """Read four statements; None if they are no update, or keep another of equal values."""
    kinds = (tirx.Bind, tirx.Bind, tirx.BufferStore, tirx.BufferStore)
    if len(statements) != _STATEMENTS or not all(map(isinstance, statements, kinds)):
        return None
    index, value, at, best = statements
    if str(at.buffer.dtype) in VALUE_BITS:
        index, value, at, best = value, index, best, at
    is_told = at.value.same_as(index.var) and best.value.same_as(value.var)
    chosen = (index.value, value.value)
    if not is_told or not all(isinstance(one, tirx.Select) for one in chosen):
        return None
    own, held = chosen[1].true_value, chosen[0].true_value
    is_own = is_load_of(own, best.buffer) and is_load_of(held, at.buffer)
    same = (at.indices, own.indices, held.indices) if is_own else ()
    if not is_own or not all(are_equal(best.indices, one) for one in same):
        return None
    new, number = chosen[1].false_value, chosen[0].false_value
    order = _order(chosen[0].condition, own, new, held, number)
    if order is None or not (
        tvm_ffi.structural_equal(chosen[1].condition, chosen[0].condition)
        or _compares(chosen[1].condition, own, new) == order[0]
    ):
        return None
    is_max, is_first = order[0] is tirx.GT, order[1] is tirx.LT
    names = (index.var, value.var)
    return Update(best.buffer, at.buffer, best.indices, new, number, is_max, is_first, names)


def _order(condition: Any, own: Any, new: Any, held: Any, number: Any) -> Any:
    """How values and indices compare where ``own`` stays: one is ahead, or both are equal."""
    if not isinstance(condition, tirx.Or) or not isinstance(condition.b, tirx.And):
        return None
    equal = condition.b.a
    sides = (equal.a, equal.b) if isinstance(equal, tirx.EQ) else ()
    is_equal = bool(sides) and (are_equal(sides, (own, new)) or are_equal(sides, (new, own)))
    found = _compares(condition.a, own, new), _compares(condition.b.b, held, number)
    return found if is_equal and None not in found else None


def _compares(condition: Any, left: Any, right: Any) -> Any:
    """``GT`` or ``LT``, as a condition compares two expressions; None if it does not."""
    if type(condition) not in _AHEAD:
        return None
    sides = (condition.a, condition.b)
    if are_equal(sides, (left, right)):
        return type(condition)
    return _AHEAD[type(condition)] if are_equal(sides, (right, left)) else None


def read_start(statements: Any) -> Start | None:
    """Read two stores at one place, of an index and a value; None if they are none."""
    if len(statements) != 2 or not all(isinstance(s, tirx.BufferStore) for s in statements):
        return None
    at, best = sorted(statements, key=lambda store: str(store.buffer.dtype) in VALUE_BITS)
    is_pair = str(at.buffer.dtype) in INDICES and str(best.buffer.dtype) in VALUE_BITS
    if not is_pair or not are_equal(at.indices, best.indices):
        return None
    own = at.buffer, best.buffer
    loads = [load for store in statements for load in loads_in(store.value)]
    if any(is_load_of(load, buffer) for load in loads for buffer in own):
        return None
    return Start(best.buffer, at.buffer, best.indices, best.value, at.value)


def split_up(statements: Any) -> Iterator[tuple[Any, int]]:
    """Cut a sequence into updates, starts and single statements, each with its length."""
    place, every = 0, list(statements)
    while place < len(every):
        update = read_update(every[place : place + _STATEMENTS])
        found = update or read_start(every[place : place + 2]) or every[place]
        taken = {Update: _STATEMENTS, Start: 2}.get(type(found), 1)
        yield found, taken
        place += taken


def packed_statements(body: Any, reduced: Sequence[Any]) -> dict[int, int]:
    """Statements, by handle, that ``PackArgmax`` makes fewer, and the instructions left of each.

    ``reduced`` are as of :func:`packed_pairs`.
    """
    own = {_key(pair) for pair, _ in packed_pairs(body, reduced)}
    found: dict[int, int] = {}
    for seq in nodes_in(body, tirx.SeqStmt) if own else ():
        every, place = list(seq.seq), 0
        for one, taken in split_up(every):
            if isinstance(one, Update) and _key(one) in own:
                stmts = [stmt.__chandle__() for stmt in every[place : place + taken]]
                found |= dict(zip(stmts, (_PACKED, 0, 0, 0), strict=True))
            place += taken
    return found


def packed_pairs(body: Any, reduced: Sequence[Any] = ()) -> list[tuple[BestPair, tuple[int, int]]]:
    """Pairs of registers of which ``PackArgmax`` makes one number, with the ends of their indices.

    The same is asked of a schedule, whose ``reduced`` buffers have results of threads together:
    TVM will keep in registers what each has found.
    """
    pairs = find_pairs(body, reduced)
    held = _addressed(body) if pairs else []
    free = (p for p in pairs if not any(one.same_as(buf) for one in held for buf in (p.best, p.at)))
    found = ((pair, _index_range(pair, body)) for pair in free)
    return [(pair, ends) for pair, ends in found if ends is not None]


def room_of(dtype: str) -> int:
    """The largest index beyond the least that one number has room for, below a value of a type."""
    return (1 << WORD_BITS - VALUE_BITS[dtype]) - 1


def _index_range(pair: BestPair, body: Any) -> tuple[int, int] | None:
    """The least and the largest index of a pair; None if one number may have no room for all."""
    bounds, names = ranges_known(body), _names_in(body)
    for realize in reversed(nodes_in(body, SBlockRealize)):  # Outer blocks first.
        for one, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            bounds.bind(one.var, value, allow_override=True)
    ends: list[tuple[int, int]] = []
    for given in [*(one.index for one in pair.starts), *(one.index for one in pair.updates)]:
        index = named(given, names)
        if _is_own(index, pair.at, names, body):
            continue
        if loads_in(index):
            return None
        known = bounds.const_int_bound(index)
        ends.append((int(known.min_value), int(known.max_value)))
    if not ends:
        return None
    least, most = min(low for low, _ in ends), max(high for _, high in ends)
    return (least, most) if most - least <= room_of(str(pair.best.dtype)) else None


def _names_in(body: Any) -> dict[int, Any]:
    """What each variable of a statement names, by handle."""
    return {bind.var.__chandle__(): bind.value for bind in nodes_in(body, tirx.Bind)}


def _is_own(index: Any, buffer: Any, names: dict[int, Any], body: Any) -> bool:
    """Whether an index is one that the buffer has in this lane, or in another one.

    Shared memory may pass it on, if nothing else is stored there.
    """
    if is_load_of(index, buffer) or comes_from(index, buffer):
        return True
    if not isinstance(index, tvm.ir.TensorLoad) or not index.source.scope().startswith("shared"):
        return False
    stores = [one for one in nodes_in(body, tirx.BufferStore) if is_load_of(index, one.buffer)]
    is_told = any(index.source.same_as(one) for one in _addressed(body))
    own = [is_load_of(named(store.value, names), buffer) for store in stores]
    return bool(own) and all(own) and not is_told


def comes_from(value: Any, buffer: Any) -> bool:
    """Whether a value is one that another lane has in a buffer."""
    return is_call_of(value, *_SHUFFLES) and is_load_of(value.args[1], buffer)


def named(value: Any, names: dict[int, Any]) -> Any:
    """What a variable names, of anything else itself."""
    return names.get(value.__chandle__(), value) if isinstance(value, tirx.Var) else value


def _addressed(body: Any) -> list[Any]:
    """Buffers of which something takes the address, and variables beside them."""
    calls = [one for one in nodes_in(body, tvm.ir.Call) if is_call_of(one, *OPAQUE)]
    return [var for call in calls for var in variables(call)]


def _key(one: Update | Start | BestPair) -> tuple[int, int]:
    return one.best.__chandle__(), one.at.__chandle__()


def _pairs_in(body: Any) -> dict[tuple[int, int], BestPair]:
    """Pairs of buffers with what changes both, by their handles."""
    pairs: dict[tuple[int, int], BestPair] = {}
    for one in (one for seq in nodes_in(body, tirx.SeqStmt) for one, _ in split_up(seq.seq)):
        if isinstance(one, Update | Start):
            pairs.setdefault(_key(one), BestPair(one.best, one.at)).add(one)
    return pairs


def find_pairs(body: Any, reduced: Sequence[Any] = ()) -> list[BestPair]:
    """Pairs of registers that nothing but updates of one kind and starts store to."""
    pairs = _pairs_in(body)
    if not any(pair.updates for pair in pairs.values()):
        return []
    stores = [store.buffer.__chandle__() for store in nodes_in(body, tirx.BufferStore)]
    named = Counter(var.__chandle__() for var in variables(body))
    return [
        pair
        for (best, at), pair in pairs.items()
        if pair.updates
        and _are_own_names(pair, named)
        and _is_kept_in_registers(pair, reduced)
        and len({(one.is_max, one.is_first) for one in pair.updates}) == 1
        and stores.count(best) == stores.count(at) == len(pair.updates) + len(pair.starts)
    ]


def _are_own_names(pair: BestPair, named: Counter[int]) -> bool:
    """Whether variables of updates are bound and stored, and occur nowhere else."""
    own = Counter(var.__chandle__() for one in pair.updates for var in one.names)
    return all(named[var] == 2 * times for var, times in own.items())


def _is_kept_in_registers(pair: BestPair, reduced: Sequence[Any]) -> bool:
    buffers = pair.best, pair.at
    return (
        all(buffer.scope() == "local" or is_among(buffer, reduced) for buffer in buffers)
        and str(pair.best.dtype) in VALUE_BITS
        and str(pair.at.dtype) in INDICES
        and are_equal(pair.best.shape, pair.at.shape)
    )
