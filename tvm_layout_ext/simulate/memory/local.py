"""Accesses of local arrays: by loads and stores, and as registers of matrix instructions.

A row of the array holds an element of all threads. CUDA code hands a matrix instruction the address
of a local array of any type, seen as 32-bit words, and a buffer may be a view of an array of
another type; then the bytes count.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import NotModelled, SimulationError
from ..model.code import LAUNCH, UNIFORM, VARYING, Code, Run, mask_and
from ..model.places import Place
from ..model.values import one_or_all, retyped, retyped_poison, to_lanes
from ..report import Site
from .memory import EVERY, FRESH, Locals

#: Bytes of a register.
_REGISTER = 4


class LocalAccess:
    """``size`` bytes of a local array of each thread, from element ``index`` of a view on.

    Unless they lie ``together``, ``index`` has each. A ``register`` must lie on its own boundary.
    """

    def __init__(
        self,
        place: Place,
        site: Site,
        index: Code,
        size: int,
        *,
        together: bool = True,
        register: bool = False,
    ) -> None:
        self.place, self.site, self.index = place, site, index
        self.size = size
        self.lanes = size // place.dtype.itemsize
        self._together = together
        self._whole = index.rank in (LAUNCH, UNIFORM) and not index.taint and together
        self._is_view = place.dtype != place.storage.dtype
        unit = place.storage.dtype.itemsize
        self._count = size // unit if together else 1
        self._boundary = max(unit, min(size, _REGISTER)) if register or self._is_view else 1
        if self._is_view and not together:
            raise NotModelled(
                f"Local array {place.name} is a {place.dtype} view of {place.storage.dtype} data "
                "whose elements are accessed apart, which the simulated GPU does not model."
            )
        if size % unit:
            raise NotModelled(
                f"{place.name} is a view of {size} bytes at a time of local data of {unit} bytes "
                "an element, which the simulated GPU does not model."
            )

    def load(self) -> Code:
        """Compile it as a load."""

        def run(s: Any, m: Any) -> Any:
            return one_or_all(*self.read(s, m, self.place.dtype))

        return Code(run, VARYING, True)

    def store(self, value: Code) -> Run:
        """Compile it as a store of a value."""
        pair, dtype, lanes = value.pair, self.place.dtype, self.lanes

        def run(s: Any, m: Any) -> None:
            x, p = pair(s, m)
            if not self._is_view:
                self._put(s, m, x, p)
                return
            whole = np.atleast_2d(to_lanes(np.asarray(x).astype(dtype), lanes, s.batch.size))
            codes = None if p is None else np.atleast_2d(to_lanes(p, lanes, s.batch.size))
            self.write(s, m, np.ascontiguousarray(whole), codes)

        return run

    def read(self, s: Any, m: Any, dtype: np.dtype[Any], lanes: slice = EVERY) -> tuple[Any, Any]:
        """Elements ``[n, threads]`` of a type, and their poison or None; of some threads alone."""
        local = s.batch.memories[self.place.storage.number]
        if self._whole:
            start = self._start(s, m, local)
            where = np.arange(start, start + self._count)[:, None]
            values = local.data[start : start + self._count, lanes]
            codes = local.rows_poison(start, self._count, lanes)
        else:
            where = self._rows(s, m, local)[0][:, lanes]
            chosen = s.batch.lane[lanes]
            values, codes = local.data[where, chosen], local.gather_poison(where, chosen)
        elements = retyped(values, dtype)
        if codes is None:
            return elements, None
        origin = s.batch.launch.findings.origin(self.place, where)
        return elements, retyped_poison(np.where(codes == FRESH, origin, codes), len(elements))

    def write(self, s: Any, m: Any, values: Any, codes: Any, lanes: slice = EVERY) -> None:
        """Set elements ``[n, threads]`` of any type, with their poison; of some threads alone."""
        words = retyped(values, self.place.storage.dtype)
        self._put(s, m, words, retyped_poison(codes, len(words)), lanes)

    def _put(self, s: Any, m: Any, words: Any, codes: Any, lanes: slice = EVERY) -> None:
        """Set elements of the array's own type; one row of them may stand for all."""
        local = s.batch.memories[self.place.storage.number]
        if not self._whole:
            words, codes = (_among(one, s.batch.size, lanes) for one in (words, codes))
            self._scatter(s, m, words, codes, local)
            return
        start = self._start(s, m, local)
        rows = local.data[start : start + self._count, lanes]
        mask = None if m is None or m is s.batch.full else m[lanes]
        np.copyto(rows, words, where=True if mask is None else mask, casting="unsafe")
        codes = codes if codes is not None and codes.any() else None
        local.set_rows_poison(start, self._count, codes, mask, lanes)

    def _scatter(self, s: Any, m: Any, words: Any, codes: Any, local: Locals) -> None:
        rows, mask = self._rows(s, m, local)
        shape = rows.shape
        words, lanes = np.broadcast_to(words, shape), np.broadcast_to(s.batch.lane, shape)
        if codes is not None:
            codes = np.broadcast_to(codes, shape)
        if mask is not None:
            rows, lanes, words = rows[:, mask], lanes[:, mask], words[:, mask]
            codes = None if codes is None else codes[:, mask]
        local.data[rows, lanes] = words
        local.scatter_poison(rows.ravel(), lanes.ravel(), None if codes is None else codes.ravel())

    # Rows.

    def _start(self, s: Any, m: Any, local: Locals) -> int:
        """First row, where all threads use the same."""
        start = int(self._row_of(np.int64(self.index.run(s, m))))
        if start < 0 or start + self._count > local.length:
            raise self._outside(s.batch, int(np.argmax(s.batch.active(m))), start, local)
        return start

    def _rows(self, s: Any, m: Any, local: Locals) -> tuple[Any, Any]:
        """Rows ``[n, threads]``, and the threads with a legal address."""
        batch = s.batch
        index, poison = self.index.pair(s, m)
        mask = batch.mask(m)
        if poison is not None:
            bad = batch.poisoned(self.site, mask, poison, "is used as an address")
            mask = mask if bad is None else mask_and(mask, ~bad)
        first = np.where(batch.active(mask), np.asarray(index).astype(np.int64), 0)
        rows = np.atleast_2d(self._row_of(first)) + np.arange(self._count)[:, None]
        bad = np.argwhere((rows < 0) | (rows >= local.length))
        if len(bad):
            raise self._outside(batch, int(bad[0][1]), int(rows[tuple(bad[0])]), local)
        return rows, mask

    def _row_of(self, element: Any) -> Any:
        if self._boundary == 1:
            return element
        byte = element * self.place.dtype.itemsize
        if np.any(byte % self._boundary):
            raise SimulationError(
                f"Misaligned address: a register of {self._boundary} bytes starts at byte "
                f"{int(np.max(byte % self._boundary))} of one in local array {self.place.name}, at "
                f"{self.site}."
            )
        return byte // self.place.storage.dtype.itemsize

    def _outside(self, batch: Any, lane: int, row: int, local: Locals) -> SimulationError:
        return SimulationError(
            f"Out of bounds: {batch.thread_name(lane)} uses index {row} of local array "
            f"{self.place.name}, which has shape ({local.length},), at {self.site}."
        )


def _among(values: Any, threads: int, lanes: slice) -> Any:
    """Values of some threads among those of all, of which the others are not written."""
    if values is None or lanes == EVERY:
        return values
    found = np.zeros((len(values), threads), values.dtype)
    found[:, lanes] = values
    return found
