"""The memories of the device: bytes with typed views, what was never written, and shadows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..races import Shadow

#: Poison code of memory that nobody wrote; a load turns it into a code that names the location.
FRESH = 1
#: Byte that fills unwritten memory: NaN as any float type, -1 as any signed integer.
_FILL = 0xFF
#: All threads, or a part of them that lies together.
EVERY = slice(None)


@dataclass(eq=False)
class Memory:
    """Bytes seen through typed views; ``granule`` is a shadow's cell, ``span`` a block's part."""

    name: str
    data: Any
    granule: int
    scope: str
    span: int
    base: int = 0
    shadow: Shadow | None = None
    #: Marks unwritten cells of global memory; those of shared memory have a zero tag.
    poison: Any = None
    pending: Any = None
    #: What TMA copied into it.
    boxes: list[Any] = field(default_factory=list)
    _views: dict[Any, Any] = field(default_factory=dict)

    @property
    def cells(self) -> int:
        """Locations that the shadows know."""
        return len(self.data) // self.granule

    @classmethod
    def unwritten(cls, name: str, size: int, granule: int, scope: str, span: int) -> Memory:
        """Memory of ``size`` bytes that nobody wrote."""
        made = cls(name, np.full(size, _FILL, np.uint8), granule, scope, span)
        if scope == "global":
            made.poison = np.full(made.cells, FRESH, np.int64)
        return made

    def view(self, dtype: np.dtype[Any]) -> Any:
        """All bytes as elements of a type."""
        found = self._views.get(dtype)
        if found is None:
            whole = len(self.data) // dtype.itemsize * dtype.itemsize
            found = self._views[dtype] = self.data[:whole].view(dtype)
        return found

    def refine(self, granule: int) -> None:
        """Use smaller cells from now on, because a kernel accesses a smaller type."""
        if granule < self.granule:
            if self.poison is not None:
                self.poison = np.repeat(self.poison, self.granule // granule)
            self.granule = granule
            self.shadow = None

    def track(self) -> None:
        """Start to watch for races."""
        self.shadow = Shadow(self.cells, across_blocks=self.scope == "global")

    def reset(self) -> None:
        """Make shared memory unwritten again, for the next batch."""
        self.data.fill(_FILL)
        self.poison = None
        self.pending = None
        self.boxes.clear()
        if self.shadow is not None:
            self.shadow.clear()

    def set_poison(self, cells: Any, codes: Any) -> None:
        """Mark cells as holding poison, or (codes None or 0) as defined."""
        if self.poison is None:
            if codes is None:
                return
            self.poison = np.zeros(self.cells, np.int64)
        self.poison[cells] = 0 if codes is None else codes


class Locals:
    """A local array of every thread: row ``i`` holds element ``i`` of all threads."""

    def __init__(self, name: str, length: int, dtype: np.dtype[Any], threads: int) -> None:
        self.name = name
        self.length = length
        filled = np.full((length, threads * dtype.itemsize), _FILL, np.uint8)
        self.data = filled.view(dtype) if dtype.kind != "b" else np.zeros((length, threads), dtype)
        self._codes = np.full((length, threads), FRESH, np.int64)
        #: A byte a row, 0 where none of its elements is poison.
        self._tainted = bytearray(b"\1" * length)

    def rows_poison(self, start: int, count: int, lanes: slice = EVERY) -> Any:
        """Poison of adjoining rows, ``[count, threads]``, or None."""
        if 1 not in self._tainted[start : start + count]:
            return None
        return self._codes[start : start + count, lanes].copy()

    def set_rows_poison(
        self, start: int, count: int, codes: Any, mask: Any, lanes: slice = EVERY
    ) -> None:
        """Replace the poison of adjoining rows for the threads of ``mask`` (None: all).

        Both are of the threads ``lanes``.
        """
        rows = slice(start, start + count)
        if codes is None and 1 not in self._tainted[rows]:
            return
        own = self._codes[rows, lanes]
        np.copyto(own, 0 if codes is None else codes, where=True if mask is None else mask)
        tainted = own.any(axis=1)
        if lanes != EVERY and not tainted.all():
            tainted = self._codes[rows].any(axis=1)
        self._tainted[rows] = tainted.tobytes()

    def gather_poison(self, rows: Any, lanes: Any) -> Any:
        """Poison of each thread's own row, or None."""
        if 1 not in self._tainted:
            return None
        codes = self._codes[rows, lanes]
        return codes if codes.any() else None

    def scatter_poison(self, rows: Any, lanes: Any, codes: Any) -> None:
        """Set the poison of each thread's own row."""
        if codes is None and 1 not in self._tainted:
            return
        self._codes[rows, lanes] = 0 if codes is None else codes
        touched = np.unique(rows)
        np.frombuffer(self._tainted, np.uint8)[touched] = self._codes[touched].any(axis=1)
