"""A kernel as the planning of barriers sees it: what it does to shared memory, in its structure.

Reads flat TIR whose shared buffers are merged: views of one arena overlap, so an access is known by
the arena and the bytes in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from ...ir.index_terms import Symbol, Term

__all__ = ["ATOMIC", "READ", "WRITE", "EnclosingLoop", "Node", "Program", "SharedEffect", "Sync"]

READ, WRITE, ATOMIC = "read", "write", "atomic"
#: Executions of a loop up to which its bounds are evaluated.
_MOST_CASES = 1 << 12


@dataclass(frozen=True, eq=False)
class EnclosingLoop:
    """A loop that an access is in.

    Attributes
    ----------
    symbol : Symbol
        Its variable; each loop has its own, also where TIR shares one among unrolled copies.
    start, extent : Term or None
        None of a ``while``.
    """

    symbol: Symbol
    start: Term | None
    extent: Term | None

    @property
    def trips(self) -> int | None:
        """Number of iterations, if it is a constant."""
        return self.extent.constant() if self.extent is not None else None

    @property
    def is_constant(self) -> bool:
        """Whether it begins and ends at constants."""
        return (
            self.start is not None and self.start.constant() is not None and self.trips is not None
        )

    def bounds(self) -> tuple[Term, Term]:
        """The conditions that begin and end it; it must have some."""
        assert self.start is not None
        assert self.extent is not None
        variable = Term("symbol", leaf=self.symbol)
        end = Term("Add", (self.start, self.extent))
        return Term("LE", (self.start, variable)), Term("LT", (variable, end))

    def values(self, outer: Mapping[Symbol, range | None]) -> range | None:
        """Values that its variable has in any execution, if they are bounded.

        Parameters
        ----------
        outer : mapping
            The same of the loops around it.
        """
        if self.start is None or self.extent is None:
            return None
        start, trips = self.start.constant(), self.trips
        if start is not None and trips is not None:
            return range(start, start + trips)
        symbols = sorted(self.start.symbols | self.extent.symbols, key=lambda s: s.name)
        ranges = [outer.get(s, s.whole) for s in symbols]
        known = [one for one in ranges if one is not None]
        cases = prod(map(len, known))
        if len(known) < len(ranges) or cases > _MOST_CASES:
            return None
        if not cases:
            return range(0)
        grid = np.meshgrid(*known, indexing="ij")
        at = dict(zip(symbols, (axis.reshape(-1) for axis in grid), strict=True))
        starts = np.broadcast_to(self.start.value(at), (cases,))
        ends = starts + self.extent.value(at)
        return range(int(starts.min()), int(ends.max()))


@dataclass(frozen=True, eq=False)
class SharedEffect:
    """What one statement does to shared memory at one place.

    Attributes
    ----------
    buffer : str
        Name of the view.
    arena : int
        The allocation, by ``__chandle__()``.
    kind : str
        ``read``, ``write`` or ``atomic``; two atomic updates need no order.
    offset : Term or None
        First byte in the arena; None if it may be any of the view.
    size : int
        Bytes from there on; if ``offset`` is None, of the arena.
    is_async : bool
        A ``cp.async``: it takes effect at the wait for its group.
    loops : tuple of Loop
        Outermost first.
    conditions : tuple of Term
        All of which hold.
    """

    buffer: str
    arena: int
    kind: str
    offset: Term | None
    size: int
    is_async: bool
    loops: tuple[EnclosingLoop, ...]
    conditions: tuple[Term, ...]

    def may_disturb(self, other: SharedEffect) -> bool:
        """Whether order can matter at all: one arena, and not both reads or both atomic."""
        return self.arena == other.arena and not self.kind == other.kind != WRITE

    @cached_property
    def index_loops(self) -> frozenset[EnclosingLoop]:
        """Loops that the address depends on, also by their bounds."""
        by_symbol = {loop.symbol: loop for loop in self.loops}
        found: set[EnclosingLoop] = set()
        todo = list(self.offset.symbols) if self.offset is not None else []
        while todo:
            loop = by_symbol.get(todo.pop())
            if loop is not None and loop not in found:
                found.add(loop)
                bounds = [term for term in (loop.start, loop.extent) if term is not None]
                todo += [symbol for term in bounds for symbol in term.symbols]
        return frozenset(found)

    @cached_property
    def ranges(self) -> dict[Symbol, range | None]:
        """Values of the variables of its loops; None of a loop that is not bounded."""
        found: dict[Symbol, range | None] = {}
        for loop in self.loops:
            found[loop.symbol] = loop.values(found)
        return found

    @cached_property
    def guards(self) -> tuple[Term, ...]:
        """The conditions, and for each loop whose bounds differ from time to time, these."""
        bounds = [
            bound
            for loop in self.loops
            if self.ranges[loop.symbol] is not None and not loop.is_constant
            for bound in loop.bounds()
        ]
        return (*self.conditions, *bounds)


@dataclass(frozen=True)
class Sync:
    """What a statement does to the order of accesses.

    Attributes
    ----------
    kind : str
        ``block`` or ``warp``: a barrier; ``commit``: ends a group of copies; ``wait``: for groups.
    groups : int
        Of a wait: how many groups may stay under way; -1 waits for copies of no group, too.
    is_storage : bool
        A ``tvm_storage_sync``, which is there for the sake of memory alone.
    """

    kind: str
    groups: int = 0
    is_storage: bool = False


@dataclass(eq=False)
class Node:
    """A statement.

    Attributes
    ----------
    stmt : Stmt
        Of TIR.
    kind : str
        ``seq``, ``if``, ``loop``, ``scope`` (an attribute) or ``leaf``.
    children : list of Node
        Of an ``if``: one or two.
    condition : Term or None
        Of an ``if`` or a ``while``.
    loop : Loop or None
    accesses : list of Access
        Of a leaf.
    before, after : Sync or None
        What happens before and after the children and accesses.
    parent : Node or None
        The statement that it is in.
    """

    stmt: Any
    kind: str = "leaf"
    children: list[Node] = field(default_factory=list)
    condition: Term | None = None
    loop: EnclosingLoop | None = None
    accesses: list[SharedEffect] = field(default_factory=list)
    before: Sync | None = None
    after: Sync | None = None
    parent: Node | None = None

    @property
    def is_divergent(self) -> bool:
        """Whether only some threads of a block may run its children."""
        terms = [self.condition]
        if self.loop is not None:
            terms += [self.loop.start, self.loop.extent]
        return any(term is not None and term.varies for term in terms)

    @property
    def is_storage_sync(self) -> bool:
        """Whether it is a barrier for shared memory, and nothing else."""
        return self.before is not None and self.before.kind == "block" and self.before.is_storage

    def ancestors(self) -> Iterator[Node]:
        """Statements around it, innermost first."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    @property
    def depth(self) -> int:
        """How many loops are around it."""
        return sum(node.kind == "loop" for node in self.ancestors())

    def described(self) -> str:
        """The condition or bounds that make it divergent, as TIR prints them."""
        if self.kind == "if":
            return f"if {self.stmt.condition}"
        if self.condition is not None:
            return f"while {self.stmt.condition}"
        return f"loop {self.stmt.loop_var.name} of {self.stmt.extent} iterations"


@dataclass
class Program:
    """A kernel.

    Attributes
    ----------
    root : Node
    threads : dict of str to int
        Extents of threadIdx axes; 0 where one is no constant.
    symbols : dict of str to Symbol
        Of the thread axes.
    arenas : dict of int to int
        Bytes of each shared allocation.
    granule : int
        Bytes of which every access is a multiple and at a multiple.
    scope : str
        ``shared.dyn`` if any allocation is, else ``shared``.
    foreign : str
        An operator whose synchronisation is not understood, if there is one.
    jump : str
        A break, continue or return, if there is one.
    """

    root: Node
    threads: dict[str, int] = field(default_factory=dict)
    symbols: dict[str, Symbol] = field(default_factory=dict)
    arenas: dict[int, int] = field(default_factory=dict)
    granule: int = 16
    scope: str = "shared"
    foreign: str = ""
    jump: str = ""
