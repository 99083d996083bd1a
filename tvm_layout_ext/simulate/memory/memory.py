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
        self._poison: list[Any] = [FRESH] * length
        self._table: Any = None

    def rows_poison(self, start: int, count: int, threads: int) -> Any:
        """Poison of adjoining rows, ``[count, threads]``, or None."""
        found = [self._row_poison(row) for row in range(start, start + count)]
        if all(codes is None for codes in found):
            return None
        return np.stack([np.broadcast_to(0 if c is None else c, (threads,)) for c in found])

    def _row_poison(self, index: int) -> Any:
        """Poison of a row: None, or codes (a scalar stands for all threads)."""
        if self._table is None:
            return self._poison[index]
        row = self._table[index]
        return row if row.any() else None

    def set_row_poison(self, index: int, codes: Any, mask: Any) -> None:
        """Replace the poison of a row for the threads of ``mask`` (None: all)."""
        if self._table is not None:
            np.copyto(
                self._table[index],
                0 if codes is None else codes,
                where=True if mask is None else mask,
            )
            return
        if mask is None:
            self._poison[index] = codes
            return
        old = self._poison[index]
        if old is None and codes is None:
            return
        kept = np.where(mask, 0 if codes is None else codes, 0 if old is None else old)
        self._poison[index] = kept if kept.any() else None

    def gather_poison(self, rows: Any, lanes: Any) -> Any:
        """Poison of each thread's own row, or None."""
        if self._table is None and all(codes is None for codes in self._poison):
            return None
        codes = self._whole_table()[rows, lanes]
        return codes if codes.any() else None

    def scatter_poison(self, rows: Any, lanes: Any, codes: Any) -> None:
        """Set the poison of each thread's own row."""
        if codes is None and self._table is None and all(c is None for c in self._poison):
            return
        self._whole_table()[rows, lanes] = 0 if codes is None else codes

    def _whole_table(self) -> Any:
        """Poison of all rows, ``[length, threads]``: from the first access of threads' own rows."""
        if self._table is None:
            self._table = np.zeros(self.data.shape, np.int64)
            for index, codes in enumerate(self._poison):
                if codes is not None:
                    self._table[index] = codes
        return self._table
