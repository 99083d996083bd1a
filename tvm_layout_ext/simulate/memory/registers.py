"""Operands of matrix instructions: 32-bit registers that are parts of local arrays, or values.

CUDA code hands an instruction the address of a local array of any type, seen as 32-bit words; so
the bytes of the array count and not its type. A buffer that is a view of a local array with
another type is the same thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...errors import NotModelled, SimulationError
from ..model.code import LAUNCH, UNIFORM, VARYING, Code, Run, mask_and
from ..model.places import Place
from ..model.values import retyped, retyped_poison, to_lanes
from ..report import Site
from .memory import FRESH, Locals


class Registers(Protocol):
    """Some adjoining 32-bit registers of each thread."""

    @property
    def size(self) -> int:
        """Bytes a thread."""

    def read(self, s: Any, m: Any, dtype: np.dtype[Any]) -> tuple[Any, Any]:
        """Elements ``[n, threads]`` of a type, and their poison or None."""

    def write(self, s: Any, m: Any, values: Any, codes: Any) -> None:
        """Set elements ``[n, threads]`` of any type, with their poison."""


@dataclass(frozen=True)
class RegisterExpression:
    """An expression that is one register; it cannot be written."""

    code: Code

    @property
    def size(self) -> int:
        """Bytes a thread."""
        return 4

    def read(self, s: Any, m: Any, dtype: np.dtype[Any]) -> tuple[Any, Any]:
        """Elements ``[n, threads]`` of a type, and their poison or None."""
        value, codes = self.code.pair(s, m)
        whole = np.ascontiguousarray(np.broadcast_to(value, (1, s.batch.size)))
        elements = retyped(whole, dtype)
        if codes is not None:
            codes = retyped_poison(np.broadcast_to(codes, (1, s.batch.size)), len(elements))
        return elements, codes

    def write(self, s: Any, m: Any, values: Any, codes: Any) -> None:
        """Refuse: only a local array can be a destination."""
        raise NotModelled("A matrix instruction can write only to elements of local arrays.")


@dataclass(frozen=True)
class LocalBits:
    """Some adjoining bytes of a local array, from element ``start`` of the view ``place``."""

    place: Place
    site: Site
    start: Code
    size: int

    def read(self, s: Any, m: Any, dtype: np.dtype[Any]) -> tuple[Any, Any]:
        """Elements ``[n, threads]`` of a type, and their poison or None."""
        local = s.batch.memories[self.place.storage.number]
        rows, lanes, _ = self._rows(s, m, local)
        if lanes is None:
            values = local.data[rows]
            codes = _row_poison(local, rows, s.batch.size)
            where = np.arange(rows.start, rows.stop)[:, None]
        else:
            values, where = local.data[rows, lanes], rows
            codes = local.gather_poison(rows, lanes)
        elements = retyped(values, dtype)
        if codes is None:
            return elements, None
        origin = s.batch.launch.findings.origin(self.place, where)
        return elements, retyped_poison(np.where(codes == FRESH, origin, codes), len(elements))

    def write(self, s: Any, m: Any, values: Any, codes: Any) -> None:
        """Set elements ``[n, threads]`` of any type, with their poison."""
        local = s.batch.memories[self.place.storage.number]
        rows, lanes, mask = self._rows(s, m, local)
        words = retyped(values, local.data.dtype)
        codes = retyped_poison(codes, len(words))
        if lanes is None:
            for number, row in enumerate(range(rows.start, rows.stop)):
                if mask is None:
                    local.data[row] = words[number]
                else:
                    np.copyto(local.data[row], words[number], where=mask)
                own = None if codes is None or not codes[number].any() else codes[number]
                local.set_row_poison(row, own, mask)
            return
        if mask is not None:
            rows, lanes, words = rows[:, mask], lanes[:, mask], words[:, mask]
            codes = None if codes is None else codes[:, mask]
        local.data[rows, lanes] = words
        flat = None if codes is None else codes.ravel()
        local.scatter_poison(rows.ravel(), lanes.ravel(), flat)

    # As an ordinary access through a view.

    def load(self, lanes: int) -> Code:
        """Compile a load of a view: a vector of ``lanes`` elements, or one."""

        def run(s: Any, m: Any) -> Any:
            values, codes = self.read(s, m, self.place.dtype)
            if lanes > 1:
                return values, codes
            return values[0], None if codes is None else codes[0]

        return Code(run, VARYING, True)

    def store(self, value: Code, lanes: int) -> Run:
        """Compile a store to a view: of a vector of ``lanes`` elements, or one."""
        pair, dtype = value.pair, self.place.dtype

        def run(s: Any, m: Any) -> None:
            x, p = pair(s, m)
            whole = np.atleast_2d(to_lanes(np.asarray(x).astype(dtype), lanes, s.batch.size))
            codes = None if p is None else np.atleast_2d(to_lanes(p, lanes, s.batch.size))
            self.write(s, m, np.ascontiguousarray(whole), codes)

        return run

    # Rows.

    def _rows(self, s: Any, m: Any, local: Locals) -> tuple[Any, Any, Any]:
        """Rows of the local array, thread numbers, and threads with a legal address.

        The rows are a slice, and there are no thread numbers, where all threads use the same.
        """
        batch = s.batch
        mask = m if m is not None else batch.full
        if self.start.rank in (LAUNCH, UNIFORM) and not self.start.taint:
            row = self._first(np.int64(self.start.run(s, m)), local)
            count = self._count(local)
            if row < 0 or row + count > local.length:
                self._raise_outside(batch, int(np.argmax(batch.active(mask))), int(row), local)
            return slice(int(row), int(row) + count), None, None if mask is batch.full else mask
        index, poison = self.start.pair(s, m)
        if poison is not None:
            bad = np.broadcast_to(poison != 0, (batch.size,)) & batch.active(mask)
            if bad.any():
                what = "is used as an address"
                batch.launch.findings.poison_at(self.site, batch, poison, bad, what)
                mask = mask_and(mask, ~bad)
        first = np.broadcast_to(np.asarray(index).astype(np.int64), (batch.size,))
        rows = self._first(np.where(batch.active(mask), first, 0), local)
        rows = rows + np.arange(self._count(local))[:, None]
        bad = np.argwhere((rows < 0) | (rows >= local.length))
        if len(bad):
            self._raise_outside(batch, int(bad[0][1]), int(rows[tuple(bad[0])]), local)
        return rows, np.broadcast_to(batch.lane, rows.shape), mask

    def _count(self, local: Locals) -> int:
        unit = local.data.dtype.itemsize
        if self.size % unit:
            raise NotModelled(
                f"{self.place.name} is a view of {self.size} bytes at a time of local data of "
                f"{unit} bytes an element, which the simulated GPU does not model."
            )
        return self.size // unit

    def _first(self, element: Any, local: Locals) -> Any:
        """Row of an element of the view; registers must lie on their own boundary."""
        byte = element * self.place.dtype.itemsize
        unit = max(local.data.dtype.itemsize, min(self.size, 4))
        if np.any(byte % unit):
            raise SimulationError(
                f"Misaligned address: a register of {unit} bytes starts at byte "
                f"{int(np.max(byte % unit))} of one in local array {self.place.name}, at "
                f"{self.site}."
            )
        return byte // local.data.dtype.itemsize

    def _raise_outside(self, batch: Any, lane: int, row: int, local: Locals) -> None:
        raise SimulationError(
            f"Out of bounds: {batch.thread_name(lane)} uses index {row} of local array "
            f"{self.place.storage.name}, which has shape ({local.length},), at {self.site}."
        )


def _row_poison(local: Locals, rows: slice, threads: int) -> Any:
    """Poison of some rows, ``[rows, threads]``, or None."""
    found = [local.row_poison(row) for row in range(rows.start, rows.stop)]
    if all(codes is None for codes in found):
        return None
    return np.stack([np.broadcast_to(0 if c is None else c, (threads,)) for c in found])


def read_all(parts: list[Registers], s: Any, m: Any, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Elements of several runs of registers, one after the other."""
    if len(parts) == 1:
        return parts[0].read(s, m, dtype)
    values, poison = zip(*[part.read(s, m, dtype) for part in parts], strict=True)
    joined = None
    if any(codes is not None for codes in poison):
        joined = np.concatenate(
            [
                np.zeros(value.shape, np.int64) if codes is None else codes
                for value, codes in zip(values, poison, strict=True)
            ]
        )
    return np.concatenate(values), joined


def write_all(parts: list[Registers], s: Any, m: Any, values: Any, codes: Any) -> None:
    """Set elements of several runs of registers, one after the other."""
    start = 0
    for part in parts:
        end = start + part.size // values.dtype.itemsize
        own = None if codes is None else codes[start:end]
        part.write(s, m, values[start:end], own)
        start = end
