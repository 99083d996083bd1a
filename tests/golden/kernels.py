"""Reads the loop of a Triton kernel from its source: what it loads, and what uses that.

The kernel is run once on NumPy arrays, one iteration a loop, for the shapes of its tiles. A mask
that puts other numbers than zero behind it is left to the use, as ``cp.async`` fills with zeros.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.golden.pipeline_loops import TYPES, Loop, Tile

Case = dict[str, Any]


class Array(np.ndarray):
    """An array that takes a type of Triton for its own."""

    def to(self, _type: object) -> Array:
        return self


@dataclass(frozen=True)
class Pointer:
    """An argument that points somewhere, and offsets."""

    name: str
    offsets: Any = 0

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.name, self.offsets + offset)


@dataclass(frozen=True)
class Load:
    """A load as it was called: where from, how much, and what lies behind the mask."""

    pointer: Pointer
    masked: bool
    other: float

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.pointer.offsets)


class Language:
    """A stand-in for ``triton.language`` on NumPy arrays that notes the loads of each line."""

    arange = staticmethod(lambda low, high: np.arange(low, high).view(Array))
    zeros = staticmethod(lambda shape, _type: np.zeros(shape).view(Array))
    program_id = staticmethod(lambda _axis: 0)
    range = staticmethod(lambda *bounds, num_stages: range(*bounds))
    max = staticmethod(lambda x, axis: x.max(axis))
    sum = staticmethod(lambda x, axis: x.sum(axis))
    maximum, exp2 = np.maximum, np.exp2
    constexpr = float16 = float32 = None

    def __init__(self) -> None:
        self.loads: dict[int, Load] = {}

    def load(self, pointer: Pointer, mask: Any = None, other: float = 0.0) -> Array:
        line = sys._getframe(1).f_lineno
        self.loads[line] = Load(pointer, mask is not None, other)
        return np.zeros(np.shape(pointer.offsets), np.int64).view(Array)

    def dot(self, left: Any, right: Any, _sum: Any = 0) -> Array:
        return (left @ right).view(Array)

    def store(self, pointer: Pointer, value: Any) -> None:
        assert np.shape(pointer.offsets) == np.shape(value)


def has_product(case: Case) -> bool:
    return "tl.dot(" in case["params"]["source_text"]


def loop_of(case: Case) -> Loop:
    """The innermost loop of a kernel that is given as source text."""
    params = case["params"]
    tree = ast.parse(params["source_text"])
    (kernel,) = tree.body
    assert isinstance(kernel, ast.FunctionDef)
    kernel.decorator_list = []
    language = Language()
    names: dict[str, Any] = {"tl": language}
    exec(compile(tree, "<kernel>", "exec"), names)
    given = {n: Pointer(n) if t[0] == "*" else 1 for n, t in params["signature"].items()}
    names["kernel"](**given, **params["constexprs"])
    (loop,) = [
        node
        for node in ast.walk(kernel)
        if isinstance(node, ast.For) and not any(isinstance(n, ast.For) for n in node.body)
    ]
    return _read(loop, language.loads, params)


def _read(loop: ast.For, loads: dict[int, Load], params: Case) -> Loop:
    tiles: dict[str, Tile] = {}
    uses: list[list[str]] = []
    for statement in loop.body:
        read = [n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id in tiles]
        load = loads.get(statement.lineno)
        if load is not None:
            assert isinstance(statement, ast.Assign)
            (target,) = statement.targets
            index = tiles[read[0]].name if read else ""
            tiles[ast.unparse(target)] = _tile(statement.value, load, index, params)
        elif read:
            uses.append([tiles[name].name for name in tiles if name in read])
    return Loop(tuple(tiles.values()), uses, 32 * params["num_warps"])


def _tile(value: ast.expr, load: Load, index: str, params: Case) -> Tile:
    """A tile passes through registers if its elements change between the load and the use."""
    name = load.pointer.name
    changed = ast.unparse(value.func) != "tl.load" if isinstance(value, ast.Call) else True
    return Tile(
        name,
        load.shape,
        TYPES[params["signature"][name].removeprefix("*")],
        index,
        masked=load.masked and load.other == 0,
        in_registers=changed or load.other != 0,
    )
