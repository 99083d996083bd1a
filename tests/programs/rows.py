"""Chains over the rows of a matrix, drawn at random, with what NumPy makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tvm import te, tirx


@dataclass
class Rows:
    """A chain as TE tensors, each with its values in 64 bits.

    Attributes
    ----------
    tensors : list
        Inputs, and then stages in the order of the program.
    values : list of ndarray
        Of the same.
    inputs, full, single : list of int
        Which of them are inputs, elements of rows, and values of a row each.
    """

    tensors: list[Any] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    full: list[int] = field(default_factory=list)
    single: list[int] = field(default_factory=list)

    def add(self, tensor: Any, value: np.ndarray, *lists: list[int]) -> None:
        for one in lists:
            one.append(len(self.tensors))
        self.tensors.append(tensor)
        self.values.append(value)

    @property
    def stages(self) -> list[Any]:
        """What is computed."""
        return [t for i, t in enumerate(self.tensors) if i not in self.inputs]


_REDUCERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (te.sum, lambda x: x.mean(1)),
    "max": (te.max, lambda x: x.max(1)),
    "min": (te.min, lambda x: x.min(1)),
}


@st.composite
def chains(draw: Any) -> Rows:
    """Two to five stages, the first of them a reduction, so that all rows are alike."""
    rows = draw(st.sampled_from([1, 3, 8, 33, 70]))
    length = draw(st.sampled_from([1, 2, 7, 32, 64, 96, 100, 128, 257, 512, 1023, 1024]))
    chain, rng = Rows(), np.random.default_rng(draw(st.integers(0, 99)))
    for name, shape in (("A", (rows, length)), ("C", (rows, length)), ("w", (length,))):
        dtype = draw(st.sampled_from(["float16", "float32"]))
        value = rng.uniform(-2, 2, shape).astype(dtype)
        tensor = te.placeholder(shape, dtype, name)
        chain.add(tensor, value, chain.inputs, *([chain.full] if name != "w" else []))
    _reduce(draw, chain, length, 0)
    for number in range(1, draw(st.integers(2, 5))):
        kind = draw(st.sampled_from(["reduce", "elements", "elements", "row"]))
        if kind == "reduce":
            _reduce(draw, chain, length, number)
        elif kind == "row":
            i = draw(st.sampled_from(chain.single))
            tensor = _row(chain.tensors[i], rows, f"row{number}")
            chain.add(tensor, np.exp(chain.values[i] * -0.5), chain.single)
        else:
            _elements(draw, chain, number)
    return chain


def _row(source: Any, rows: int, name: str) -> Any:
    return te.compute((rows,), lambda r: te.exp(source[r] * -0.5), name=name)


def _reduce(draw: Any, chain: Rows, length: int, number: int) -> None:
    i = draw(st.sampled_from(chain.full))
    name = draw(st.sampled_from(list(_REDUCERS)))
    over, numpy = _REDUCERS[name]
    k = te.reduce_axis((0, length), "k")
    source, scale = chain.tensors[i], 1 / length if name == "sum" else 1.0
    tensor = te.compute(
        (source.shape[0],),
        lambda r: over(source[r, k].astype("float32") * scale, axis=k),
        name=f"{name}{number}",
    )
    chain.add(tensor, numpy(chain.values[i].astype("float64")), chain.single)


def _elements(draw: Any, chain: Rows, number: int) -> None:
    i, j = (draw(st.sampled_from(chain.full)) for _ in range(2))
    r = draw(st.sampled_from(chain.single))
    x, y, of_row, w = (chain.tensors[n] for n in (i, j, r, 2))
    a, b, s, v = (chain.values[n].astype("float64") for n in (i, j, r, 2))
    form = draw(st.sampled_from(["exp", "weigh", "divide", "add"]))
    numpy = {
        "exp": lambda: np.exp(np.minimum(a - s[:, None], 1)),
        "weigh": lambda: (a - s[:, None]) * v * 0.5,
        "divide": lambda: a / (np.abs(s[:, None]) + 1),
        "add": lambda: (a + b) * 0.5,
    }[form]

    def element(p: Any, q: Any) -> Any:
        wide, other = (t[p, q].astype("float32") for t in (x, y))
        if form == "exp":
            return te.exp(tirx.min(wide - of_row[p], tirx.const(1.0, "float32")))
        if form == "weigh":
            return (wide - of_row[p]) * w[q].astype("float32") * 0.5
        if form == "divide":
            return wide / (te.abs(of_row[p]) + 1.0)
        return (wide + other) * 0.5

    tensor = te.compute(tuple(x.shape), element, name=f"{form}{number}")
    chain.add(tensor, numpy(), chain.full)
