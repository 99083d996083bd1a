"""Random programs that move or reduce one array of 16 to 200 MB, for rules that hold of all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import prod

from benchmarks.thread_programs import Program

_BYTES = {"float32": 4, "float16": 2, "int8": 1}
#: Sizes that dims take, short ones, odd ones and primes among them.
_SHORT = (1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 17, 31, 32, 33, 48, 64, 96, 100, 113, 127, 128)
_KINDS = ("copy", "permute", "permute", "sum", "sum", "max", "argmax")


def drawn(number: int, seed: int = 20) -> Program:
    """Draw a program by its number."""
    rng = random.Random(f"{seed} {number}")
    kind = rng.choice(_KINDS)
    dtype = rng.choice(list(_BYTES))
    rank = rng.randint(1 if kind in ("copy", "sum", "max") else 2, 5)
    shape = _shape(rng, rank, rng.randint(16 << 20, 200 << 20) // _BYTES[dtype])
    axes = _axes(rng, kind, rank)
    return Program(kind, shape, dtype, axes)


def _shape(rng: random.Random, rank: int, elements: int) -> tuple[int, ...]:
    """Dims of which one or two are long, at random places."""
    dims = [rng.choice(_SHORT) for _ in range(rank)]
    long = rng.sample(range(rank), min(rank, rng.randint(1, 2)))
    for place, axis in enumerate(long):
        others = prod(n for at, n in enumerate(dims) if at not in long[place:])
        left = max(2, elements // others)
        dims[axis] = left if place == len(long) - 1 else max(2, int(left ** rng.uniform(0.3, 0.7)))
    return tuple(dims)


def _axes(rng: random.Random, kind: str, rank: int) -> tuple[int, ...]:
    if kind == "copy":
        return ()
    if kind == "permute":
        return tuple(rng.sample(range(rank), rank))
    if kind == "argmax":
        return (rng.randrange(rank),)
    return tuple(sorted(rng.sample(range(rank), rng.randint(1, rank))))


def least_sectors(program: Program) -> float:
    """Sectors that a program must move at least."""
    sides: Sequence[tuple[tuple[int, ...], str]] = [*program.inputs(), *program.results()]
    return sum(-(-prod(shape) * _BYTES.get(dtype, 4) // 32) for shape, dtype in sides)
