"""A kernel as the planning of barriers sees it: what it does to shared memory, in its structure.

Shared buffers of flat TIR are merged: views of one arena overlap, so an access is known by the
arena and the bytes in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from .terms import UNKNOWN, Symbol, Term

READ, WRITE, ATOMIC = "read", "write", "atomic"


@dataclass(frozen=True, eq=False)
class EnclosingLoop:
    """A loop around an access, of a symbol of its own; a ``while`` has neither start nor extent."""

    symbol: Symbol
    start: Term | None
    extent: Term | None

    @cached_property
    def first(self) -> int | None:
        """Where it starts, if that is a constant."""
        return self.start.constant() if self.start is not None else None

    @cached_property
    def trips(self) -> int | None:
        """Number of iterations, if it is a constant."""
        return self.extent.constant() if self.extent is not None else None

    @cached_property
    def values(self) -> range | None:
        """Values of its variable, if its bounds are constants."""
        first, trips = self.first, self.trips
        return None if first is None or trips is None else range(first, first + trips)


@dataclass(frozen=True, eq=False)
class SharedEffect:
    """What one statement does to shared memory at one place."""

    buffer: str  #: Name of the view
    arena: int  #: The allocation, by ``__chandle__()``
    kind: str  #: ``read``, ``write`` or ``atomic``; two atomic updates need no order
    offset: Term | None  #: First byte in the arena; None if it may be any
    size: int  #: Bytes from there on
    is_async: bool  #: A ``cp.async``: it takes effect at the wait for its group
    loops: tuple[EnclosingLoop, ...]  #: Outermost first
    conditions: tuple[Term, ...]  #: All of which hold

    def may_disturb(self, other: SharedEffect) -> bool:
        """Whether order can matter at all: one arena, and not both reads or both atomic."""
        return self.arena == other.arena and not self.kind == other.kind != WRITE

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """What the address depends on."""
        return self.offset.symbols if self.offset is not None else frozenset()

    @cached_property
    def index_loops(self) -> frozenset[EnclosingLoop]:
        """Loops that the address depends on."""
        return frozenset(loop for loop in self.loops if loop.symbol in self.symbols)


@dataclass(frozen=True)
class Sync:
    """What a statement does to the order of accesses."""

    #: ``block`` or ``warp``: a barrier; ``commit``: ends a group of copies; ``wait``: for groups.
    kind: str
    #: Of a wait: how many groups may stay under way; -1 waits for copies of no group, too.
    groups: int = 0
    is_storage: bool = False  #: A ``tvm_storage_sync``, which is there for the sake of memory alone


@dataclass(eq=False)
class Node:
    """A statement: ``seq``, ``if``, ``loop``, ``scope`` (an attribute) or ``leaf``.

    ``before`` and ``after`` are what happens before and after its children and accesses.
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
    def decisions(self) -> list[Term]:
        """What decides whether, and how often, a thread runs its children."""
        terms = [self.condition]
        if self.loop is not None:
            terms += [self.loop.start, self.loop.extent]
        return [term for term in terms if term is not None]

    @property
    def is_divergent(self) -> bool:
        """Whether only some threads of a block may run its children."""
        return any(term.varies for term in self.decisions)

    @property
    def is_barrier(self) -> bool:
        """Whether it is a barrier of the block."""
        return self.before is not None and self.before.kind == "block"

    @property
    def is_storage_sync(self) -> bool:
        """Whether it is a barrier for shared memory, and nothing else."""
        return self.before is not None and self.before.is_storage and self.is_barrier

    def walk(self) -> Iterator[Node]:
        """Iterate over the statement and all inside it."""
        left = [self]
        while left:
            node = left.pop()
            yield node
            left.extend(reversed(node.children))

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
        """Its condition or bounds, as TIR prints them."""
        if self.kind == "if":
            return f"if {self.stmt.condition}"
        if self.condition is not None:
            return f"while {self.stmt.condition}"
        return f"loop {self.stmt.loop_var.name} of {self.stmt.extent} iterations"


@dataclass
class Program:
    """A kernel."""

    root: Node
    #: Extents of threadIdx axes; 0 where one is no constant.
    threads: dict[str, int] = field(default_factory=dict)
    symbols: dict[str, Symbol] = field(default_factory=dict)  #: Of the thread axes
    arenas: dict[int, int] = field(default_factory=dict)  #: Bytes of each shared allocation
    granule: int = 16  #: Bytes of which every access is a multiple and at a multiple
    scope: str = "shared"  #: ``shared.dyn`` if any allocation is, else ``shared``
    #: A break, continue or return.
    jump: str = ""


def divergent_barrier(program: Program) -> str:
    """The innermost condition or loop around a barrier on which threads do not agree."""
    for node in program.root.walk():
        if node.is_barrier:
            for around in node.ancestors():
                if any(_differs(term, program) for term in around.decisions):
                    return around.described()
    return ""


def _differs(term: Term, program: Program) -> bool:
    """Whether threads are known to see different values, or nothing tells that they do not."""
    if not term.varies or UNKNOWN in term.symbols:
        return False
    threads = (s for tag, s in program.symbols.items() if tag in program.threads)
    axes = [symbol for symbol in threads if symbol in term.symbols]
    if term.symbols != set(axes) or not all(symbol.extent for symbol in axes):
        return True
    grid = np.meshgrid(*(np.arange(symbol.extent) for symbol in axes), indexing="ij")
    # The lanes of a vector lie along the last axis.
    known = {symbol: index[..., None] for symbol, index in zip(axes, grid, strict=True)}
    value = term.value(known)
    lanes = value.reshape(-1, value.shape[-1])
    return bool((lanes != lanes[:1]).any())
