"""Random nests, cut and fused at random beforehand, compute what NumPy computes once mapped."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import HealthCheck, event, given, note, seed, settings
from hypothesis import strategies as st
from tvm import s_tir

from tests import sampling
from tvm_layout_ext import ScheduleError
from tvm_layout_ext.simulate import simulate

EXTENTS = (1, 1, 2, 3, 5, 8, 16, 17, 32, 33, 64)
#: Runs that a whole matrix has, of 200 programs each.
PARTS = range(10)
#: Loops cut with a rest are not staged, nor are loops of results and of what these sum mapped.
_MOST_REFUSED = 0.25


@dataclass(frozen=True)
class Program:
    """Let ``B`` be ``A`` in another order or summed over some axes, and then do something else.

    Attributes
    ----------
    shape : tuple of int
        Of A.
    order : tuple of int
        Dims of A that B has, in its order; it is summed over the others.
    loops : tuple of int
        Dims of A in the order of the loops.
    then : str
        What the next block does: "scale" B in place, "clear" A, "read" B into D, or nothing.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    loops: tuple[int, ...]
    then: str

    @property
    def results(self) -> list[int]:
        """Shape of B."""
        return [self.shape[dim] for dim in self.order]

    def text(self) -> str:
        """Write it as TVMScript."""
        own, given = ", ".join(f"v{d}" for d in self.order), ", ".join(f"v{d}" for d in self.dims)
        moved = f"B[{own}] = A[{given}]"
        if len(self.order) < len(self.shape):
            moved = f"with T.init():\n    B[{own}] = 0.0\nB[{own}] = B[{own}] + A[{given}]"
        second, dims = {
            "scale": (f"B[{own}] = B[{own}] * 2.0", self.order),
            "read": (f"D[{own}] = B[{own}] + 1.0", self.order),
            "clear": (f"A[{given}] = 0.0", self.dims),
            "": ("", ()),
        }[self.then]
        nests = _nest(self, "B", self.loops, moved)
        nests += _nest(self, "C", dims, second) if second else ""
        shapes = {"A": self.shape, "B": self.results, "D": self.results}
        params = ", ".join(f'{n}: T.Buffer({tuple(s)}, "float32")' for n, s in shapes.items())
        return f"@T.prim_func(s_tir=True)\ndef main({params}):\n{_indented(nests)}"

    @property
    def dims(self) -> range:
        """Dims of A."""
        return range(len(self.shape))

    def numpy(self, a: np.ndarray) -> dict[str, np.ndarray]:
        """Give what it makes of A, by name."""
        summed = tuple(dim for dim in self.dims if dim not in self.order)
        kept = sorted(self.order)
        b = a.sum(summed).transpose([kept.index(dim) for dim in self.order])
        if self.then == "read":
            return {"B": b, "D": b + 1}
        return {"B": b * 2 if self.then == "scale" else b}


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def _nest(program: Program, name: str, loops: Any, body: str) -> str:
    """Write a block in loops over some dims; those that B does not have are summed over."""
    head = ", ".join(f"i{dim}" for dim in loops)
    text = f"for {head} in T.grid({', '.join(str(program.shape[d]) for d in loops)}):\n"
    text += f'    with T.sblock("{name}"):\n'
    for dim in loops:
        kind = "spatial" if name == "C" or dim in program.order else "reduce"
        text += f"        v{dim} = T.axis.{kind}({program.shape[dim]}, i{dim})\n"
    return text + _indented(_indented(body))


@st.composite
def programs(draw: Any) -> Program:
    shape = draw(st.lists(st.sampled_from(EXTENTS), min_size=1, max_size=4).map(tuple))
    dims = list(range(len(shape)))
    order = draw(st.permutations(dims))
    kept = draw(st.one_of(st.just(len(dims)), st.integers(1, len(dims))))
    then = draw(st.sampled_from(["", "scale", "clear", "read"]))
    return Program(shape, tuple(order[:kept]), tuple(draw(st.permutations(dims))), then)


def cut_loops(draw: Any, sch: Any) -> None:
    """Fuse, split and reorder the loops of block B a few times."""
    for _ in range(draw(st.integers(0, 3))):
        loops = sch.get_loops("B")
        at = draw(st.integers(0, len(loops) - 1))
        what = draw(st.sampled_from(["fuse", "split", "reorder"]))
        if what == "split":
            factor = draw(st.sampled_from([1, 2, 3, 4, 8, 16, 32]))
            sch.split(loops[at], [None, factor])
        elif at + 1 < len(loops) and what == "fuse":
            sch.fuse(loops[at], loops[at + 1])
        elif at + 1 < len(loops):
            sch.reorder(loops[at + 1], loops[at])


def _outcome(program: Program, draw: Any) -> str:
    """Map both blocks and run them; fails where the result is another than NumPy's."""
    note(program.text())
    sch = s_tir.Schedule(tvm.script.from_source(program.text()))
    cut_loops(draw, sch)
    note(sch.mod.script())
    asked = {
        "num_threads": draw(st.sampled_from([None, 32, 64, 256])),
        "vector_bytes": draw(st.sampled_from([16, 16, 4])),
        "stage": draw(st.sampled_from(["auto", "auto", "shared", "none"])),
    }
    note(str(asked))
    paths = []
    for block in ("B", "C") if program.then else ("B",):
        try:
            paths.append(sch.auto_coalesce(block, **asked).path)
        except ScheduleError as error:
            note(str(error))
            return "refused"
    note(str(paths))
    if "alone" in paths:
        return "alone"
    a = np.random.default_rng(0).integers(-8, 8, program.shape).astype("float32")
    report = simulate(sch, a, *([np.zeros(program.results, "float32")] * 2), progress=False)
    for name, wanted in program.numpy(a).items():
        np.testing.assert_array_equal(report.outputs[name], wanted)
    assert not report.hazards
    return paths[0]


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize("part", PARTS)
def test_random_nests_equal_numpy(part: int) -> None:
    outcomes: Counter[str] = Counter()

    @seed(1000 * sampling.seed + part)
    @settings(
        max_examples=sampling.matrix_examples(200),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        deadline=None,
    )
    @given(programs(), st.data())
    def run(program: Program, data: Any) -> None:
        outcome = _outcome(program, data.draw)
        event(outcome)
        outcomes[outcome] += 1

    run()
    assert outcomes["refused"] + outcomes["alone"] <= _MOST_REFUSED * outcomes.total() + 2
