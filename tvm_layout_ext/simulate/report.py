"""What a simulation found: results, counts of every access, hazards, and the table of it all."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any

from ..gpu.requests import sectors_per_request
from ..text import brief, columns


@dataclass(frozen=True)
class Site:
    """Where in the device code something is: a line of ``Report.script`` from 1, or 0 if unknown.

    Names are the user's, also where shared buffers were merged. The schedule block is told where
    exactly one writes what the statement writes and reads what it reads.
    """

    buffer: str
    block: str | None
    line: int

    def __str__(self) -> str:
        block = f" in block {self.block}" if self.block else ""
        return f"{self.buffer}{block}, line {self.line}"


#: What is summed over warps, and what of it nvcc decides.
_COUNTED = ("requests", "sectors", "ideal_sectors", "wavefronts", "bytes")
_OPEN = ("requests", "sectors", "wavefronts")


@dataclass(frozen=True)
class AccessCounts:
    """Counts of one access in the program, summed over all warps that made it."""

    buffer: str  #: The user's name
    scope: str  #: ``global``, ``shared`` or ``shared.dyn``
    #: ``load``, ``store``, ``atomic``, ``ldmatrix``, ``stmatrix`` or ``cp.async``, the write of an
    #: asynchronous copy; its read is a ``load``.
    kind: str
    requests: int  #: Warp instructions
    sectors: int  #: 32-byte sectors of global memory
    ideal_sectors: int  #: What the same bytes need at least
    wavefronts: int  #: Passes of the shared memory
    bank_conflicts: int  #: How many of them are over the least possible
    vector_bytes: int  #: Bytes a thread moves in one instruction
    bytes: int  #: Of all threads; an address that several ask for counts each time
    site: Site
    kernel: str = ""  #: Name of its device function
    #: How many of the requests, sectors and wavefronts nvcc may do without.
    open_requests: int = 0
    open_sectors: int = 0
    open_wavefronts: int = 0

    @classmethod
    def of(cls, access: Any, kernel: str) -> AccessCounts:
        """Make the record of a kernel's :class:`.LocatedAccess`."""
        count, sure = access.counts
        return cls(
            buffer=access.site.buffer,
            scope=access.place.storage.scope,
            kind=access.kind,
            bank_conflicts=count.wavefronts - count.least_wavefronts,
            vector_bytes=access.made,
            site=access.site,
            kernel=kernel,
            **{name: getattr(count, name) for name in _COUNTED},
            **{
                f"open_{name}": max(getattr(count, name) - getattr(sure, name), 0) for name in _OPEN
            },
        )

    def __add__(self, other: AccessCounts) -> AccessCounts:
        """Both together, of the same buffer and kind; the place is the earlier one."""
        names = [*_COUNTED, "bank_conflicts", *(f"open_{name}" for name in _OPEN)]
        totals = {name: getattr(self, name) + getattr(other, name) for name in names}
        return replace(self, **totals, site=min(self.site, other.site, key=lambda site: site.line))

    @property
    def sectors_per_request(self) -> float:
        """32-byte sectors that one warp instruction moves on average."""
        return sectors_per_request(self.sectors, self.requests)


@dataclass(frozen=True)
class Hazard:
    """Something that may go wrong on a GPU; threads, sites and numbers are the first case's.

    A ``race``: two threads touch a location, one writing, and nothing orders them; ``redundant``:
    the same, but both write the same bits; ``poison``: a value that nobody wrote is used;
    ``async``: memory is touched while an asynchronous copy into it is under way, or written while
    one from it is; ``barrier``: a barrier that only some of the threads reach; ``divergent``: a
    warp-wide instruction that only some of the threads of a warp execute.
    """

    kind: str
    buffer: str  #: The user's name
    index: int  #: Element of the flat buffer
    threads: tuple[str, ...]  #: As ``thread (x,y,z) of block (x,y,z)``
    sites: tuple[Site, ...]  #: Where they do it
    message: str  #: One sentence with all of it
    count: int = 1  #: How many cases share buffer, sites and kind
    #: Loops around the first site, outermost first, with the values of their variables.
    iteration: tuple[tuple[str, int], ...] = ()
    #: Version of the buffer, from 0, where a pipelined loop made several and it is certain which.
    version: int | None = None

    def __str__(self) -> str:
        more = f" ({self.count:,} cases)" if self.count > 1 else ""
        return f"{self.kind}: {self.message}{more}"


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel: blocks simulated, those of its grid, and barriers they passed."""

    kernel: str
    sampled: int
    blocks: int
    barriers: int


@dataclass(repr=False)
class Report:
    """Outcome of :func:`tvm_layout_ext.simulate`; ``text()`` is all but the outputs."""

    #: Every parameter that a kernel writes, by name (T_add, T_add_1 where names are equal); masked
    #: where ``grid_sample`` left blocks out.
    outputs: dict[str, Any] = field(default_factory=dict)
    accesses: list[AccessCounts] = field(default_factory=list)  #: In the order of the program
    hazards: list[Hazard] = field(default_factory=list)  #: Empty for a sound program
    #: Locations that several threads write with the same bits: wasteful, not wrong.
    redundant: list[Hazard] = field(default_factory=list)
    unlisted: int = 0  #: Cases of further hazards, beyond the 200 that are listed
    shared_bytes: int = 0  #: Shared memory of a block, the largest of all kernels
    script: str = ""  #: The device functions as printed; ``Site.line`` counts its lines
    launches: list[Launch] = field(default_factory=list)  #: In the order of the host

    @property
    def blocks(self) -> tuple[int, int]:
        """Blocks simulated, and blocks of all launched grids."""
        return sum(one.sampled for one in self.launches), sum(one.blocks for one in self.launches)

    @property
    def barriers(self) -> int:
        """Block-wide barriers passed, summed over blocks."""
        return sum(one.barriers for one in self.launches)

    @property
    def bank_conflicts(self) -> int:
        """Shared-memory wavefronts over the least possible, summed over all accesses."""
        return sum(access.bank_conflicts for access in self.accesses)

    @property
    def wavefronts(self) -> int:
        """Shared-memory wavefronts, summed over all accesses."""
        return sum(access.wavefronts for access in self.accesses)

    @property
    def sectors(self) -> int:
        """32-byte sectors of global memory, summed over all accesses."""
        return sum(access.sectors for access in self.accesses)

    @property
    def ideal_sectors(self) -> int:
        """Least possible sectors, summed over all accesses."""
        return sum(access.ideal_sectors for access in self.accesses)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Heads and rows; accesses that differ in nothing but their line are one row."""
        names = ("buffer", "scope", "kind", "vector_bytes", "site.block", "kernel")
        return _HEADINGS, [_row(access) for access in self._alike(*names)]

    @property
    def open(self) -> list[str]:
        """What of the counts nvcc decides, a sentence for each buffer and kind of access."""
        alike = self._alike("buffer", "kind", "kernel")
        return [_open(one) for one in alike if one.open_requests or one.open_wavefronts]

    def _alike(self, *names: str) -> list[AccessCounts]:
        """Sums of the accesses that have these in common."""
        alike: dict[Any, AccessCounts] = {}
        for one in self.accesses:
            key = attrgetter(*names)(one)
            alike[key] = one + alike[key] if key in alike else one
        return list(alike.values())

    def summary(self) -> str:
        """Totals, what of them is open, and hazards."""
        more = [f"and {self.unlisted:,} cases of further hazards"] if self.unlisted else []
        found = map(str, [*self.hazards, *self.redundant])
        return "\n".join([self._totals(), *self.open, *found, *more])

    def to_json(self) -> dict[str, Any]:
        """Counters and hazards as plain values, without the outputs."""
        kept = ("accesses", "hazards", "redundant", "launches")
        listed = {name: [asdict(one) for one in getattr(self, name)] for name in kept}
        names = (
            "bank_conflicts", "sectors", "ideal_sectors", "barriers", "shared_bytes", "script",
            "open",
        )  # fmt: skip
        return {**{name: getattr(self, name) for name in names}, **listed}

    def text(self) -> str:
        """All of it: every access, totals, what of them is open, and hazards."""
        return f"{columns(*self.table())}\n\n{self.summary()}"

    def __str__(self) -> str:
        return brief(repr(self).split("\n"), "text() has every access.")

    def __repr__(self) -> str:
        outputs = ", ".join(f"{name} {value.shape}" for name, value in self.outputs.items())
        hazards = [str(hazard) for hazard in self.hazards[:3]]
        return "\n".join([f"Report: outputs {outputs or 'none'}", self._totals(), *hazards])

    def _totals(self) -> str:
        run, total = self.blocks
        part = f"{run:,} of {total:,} blocks" if run != total else f"{total:,} blocks"
        return (
            f"{part}; {self.sectors:,} sectors (least {self.ideal_sectors:,}), "
            f"{self.bank_conflicts:,} bank conflicts, {self.barriers:,} barriers, "
            f"{self.shared_bytes:,} bytes shared; {len(self.hazards)} hazards"
        )


_HEADINGS = (
    "buffer", "scope", "kind", "bytes", "requests", "sectors/request", "least", "wavefronts",
    "conflicts", "block", "line",
)  # fmt: skip


def _open(one: AccessCounts) -> str:
    what = "sectors" if one.scope == "global" else "wavefronts"
    whole, left = getattr(one, what), getattr(one, f"open_{what}")
    return (
        f"Open: {one.requests - one.open_requests:,} to {one.requests:,} {one.kind} requests of "
        f"{one.buffer}, {whole - left:,} to {whole:,} {what}, as nvcc unrolls and keeps values."
    )


def _row(access: AccessCounts) -> tuple[str, ...]:
    requests = max(access.requests, 1)
    is_global = access.scope == "global"
    return (
        access.buffer,
        access.scope,
        access.kind,
        str(access.vector_bytes),
        f"{access.requests:,}",
        f"{access.sectors / requests:.2f}" if is_global else "",
        f"{access.ideal_sectors / requests:.2f}" if is_global else "",
        "" if is_global else f"{access.wavefronts:,}",
        "" if is_global else f"{access.bank_conflicts:,}",
        access.site.block or "",
        str(access.site.line),
    )
