"""Loads and stores of local arrays: a row of the array where all threads use one index."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import SimulationError
from ..model.code import LAUNCH, UNIFORM, VARYING, Code, Run, mask_and
from ..model.places import Place
from ..model.values import to_lanes
from ..report import Site
from .memory import FRESH, Locals


class LocalAccess:
    """An access of a local array; ``index`` is the first element, or each where they lie apart."""

    def __init__(self, place: Place, site: Site, index: Code, lanes: int, contiguous: bool) -> None:
        self.place = place
        self.site = site
        self.index = index
        self.lanes = lanes
        self.contiguous = contiguous
        self.by_row = index.rank in (LAUNCH, UNIFORM) and not index.taint and contiguous

    def load(self) -> Code:
        """Compile it as a load."""
        return Code(self._load_rows if self.by_row else self._gather, VARYING, True)

    def store(self, value: Code) -> Run:
        """Compile it as a store of a value."""
        pair = value.pair

        def run(s: Any, m: Any) -> None:
            x, p = pair(s, m)
            self._put(s, m, x, p)

        return run

    def _put(self, s: Any, m: Any, x: Any, p: Any) -> None:
        if self.by_row:
            self._store_rows(s, m, x, p)
        else:
            self._scatter(s, m, x, p)

    def _start(self, s: Any, m: Any, local: Locals) -> int:
        start = int(self.index.run(s, m))
        if start < 0 or start + self.lanes > local.length:
            raise self._outside(s.batch, int(np.argmax(s.batch.active(m))), start, local)
        return start

    def _outside(self, batch: Any, lane: int, index: int, local: Locals) -> SimulationError:
        return SimulationError(
            f"Out of bounds: {batch.thread_name(lane)} uses index {index} of local array "
            f"{self.place.name}, which has shape ({local.length},), at {self.site}."
        )

    def _load_rows(self, s: Any, m: Any) -> tuple[Any, Any]:
        local = s.batch.memories[self.place.storage.number]
        start = self._start(s, m, local)
        if self.lanes == 1:
            return local.data[start], self._named(s, local.row_poison(start), start)
        value = local.data[start : start + self.lanes]
        rows = [self._named(s, local.row_poison(start + i), start + i) for i in range(self.lanes)]
        if all(row is None for row in rows):
            return value, None
        size = s.batch.size
        codes = [np.broadcast_to(0 if r is None else r, (size,)) for r in rows]
        return value, np.stack(codes)

    def _named(self, s: Any, codes: Any, index: Any) -> Any:
        if codes is None:
            return None
        origin = s.batch.launch.findings.origin(self.place, np.int64(index))
        return np.where(np.asarray(codes) == FRESH, origin, codes)

    def _store_rows(self, s: Any, m: Any, x: Any, p: Any) -> None:
        batch = s.batch
        local = batch.memories[self.place.storage.number]
        start = self._start(s, m, local)
        mask = None if m is batch.full else m
        for i in range(self.lanes):
            value = x if self.lanes == 1 else x[i if np.shape(x)[0] > 1 else 0]
            if mask is None:
                local.data[start + i] = value
            else:
                np.copyto(local.data[start + i], value, where=mask, casting="unsafe")
            codes = p if p is None or np.ndim(p) < 2 else p[i if p.shape[0] > 1 else 0]
            if codes is not None and not codes.any():
                codes = None
            local.set_row_poison(start + i, codes, mask)

    def _rows(self, s: Any, m: Any, local: Locals) -> tuple[Any, Any, Any]:
        """Row of each element and thread, the legal threads, and the rows' thread numbers."""
        batch = s.batch
        index, poison = self.index.pair(s, m)
        mask = m if m is not None else batch.full
        if poison is not None:
            bad = np.broadcast_to(poison != 0, (batch.size,)) & batch.active(mask)
            if bad.any():
                what = "is used as an address"
                batch.launch.findings.poison_at(self.site, batch, poison, bad, what)
                mask = mask_and(mask, ~bad)
        rows = np.asarray(index).astype(np.int64)
        if self.contiguous and self.lanes > 1:
            rows = rows + np.arange(self.lanes)[:, None]
        rows = np.broadcast_to(rows, (*rows.shape[:-1], batch.size))
        outside = (rows < 0) | (rows >= local.length)
        if outside.any():
            bad = np.argwhere(outside & batch.active(mask))
            if len(bad):
                where = tuple(bad[0])
                raise self._outside(batch, int(where[-1]), int(rows[where]), local)
            rows = np.where(outside, 0, rows)
        return rows, mask, np.broadcast_to(batch.lane, rows.shape)

    def _gather(self, s: Any, m: Any) -> tuple[Any, Any]:
        local = s.batch.memories[self.place.storage.number]
        rows, _, lanes = self._rows(s, m, local)
        return local.data[rows, lanes], self._named(s, local.gather_poison(rows, lanes), rows)

    def _scatter(self, s: Any, m: Any, x: Any, p: Any) -> None:
        batch = s.batch
        local = batch.memories[self.place.storage.number]
        rows, mask, lanes = self._rows(s, m, local)
        value = to_lanes(x, self.lanes, batch.size)
        codes = None if p is None else to_lanes(p, self.lanes, batch.size)
        if mask is not None:
            rows, lanes, value = rows[..., mask], lanes[..., mask], value[..., mask]
            codes = None if codes is None else codes[..., mask]
        local.data[rows, lanes] = value
        local.scatter_poison(rows.ravel(), lanes.ravel(), None if codes is None else codes.ravel())
