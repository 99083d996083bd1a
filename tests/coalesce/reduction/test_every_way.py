"""Every way to share out a reduction gives NumPy's results, whether it is chosen or not."""

from __future__ import annotations

import random
from math import prod

import pytest
from tvm import s_tir

from benchmarks.thread_programs import Program
from tests.programs.reduced import gives_numpys
from tvm_layout_ext.coalesce.propose import propose
from tvm_layout_ext.coalesce.request import Request
from tvm_layout_ext.coalesce.subject import Subject
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.ir.annotations import DONE

SIZES = (1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 32, 33, 64, 100, 127, 128, 257, 1000, 1003, 4096)


def drawn(number: int) -> Program:
    """A small reduction, by its number."""
    rng = random.Random(f"reduction {number}")
    kind = rng.choice(("sum", "sum", "max", "argmax"))
    dtype = rng.choice(("float32", "float16", "int8"))
    while True:
        rank = rng.randint(2 if kind == "argmax" else 1, 4)
        shape = tuple(rng.choice(SIZES) for _ in range(rank))
        if 64 <= prod(shape) <= 100000:
            break
    count = 1 if kind == "argmax" else rng.randint(1, rank)
    return Program(kind, shape, dtype, tuple(sorted(rng.sample(range(rank), count))))


@pytest.mark.matrix
@pytest.mark.parametrize("number", range(600))
def test_every_way_is_numpys(number: int) -> None:
    program = drawn(number)
    sch = s_tir.Schedule(program.function())
    subject = Subject.of(sch, sch.get_sblock("B"), Request())
    for way in propose(subject)[0]:
        own = sch.copy()
        try:
            way.apply(own, subject.block)
        except ScheduleError:
            continue
        own.annotate(subject.block, DONE, way.path)
        gives_numpys(program, own)
