"""Programs of one block each: a few nests over register tiles, written as their statements."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm.script
from tvm import s_tir

from tests.programs.mapped import computed
from tvm_layout_ext import decisions
from tvm_layout_ext._compat import pass_name
from tvm_layout_ext.pipeline import lowering_passes
from tvm_layout_ext.transform import CombineLayoutConversions
from tvm_layout_ext.transform.conversions.read import read_graph
from tvm_layout_ext.transform.conversions.rules import Conversion
from tvm_layout_ext.transform.fragments.fragment import collect_fragments

NAME = "tvm_layout_ext.CombineLayoutConversions"
_VARIABLES = ("vi", "vj")


def program(
    tensors: Mapping[str, tuple[Sequence[int], str]],
    buffers: Mapping[str, tuple[Sequence[int], str, Any]],
    statements: str | Sequence[str],
) -> tvm.IRModule:
    """A function of ``tensors``, its parameters, each a shape and a type.

    ``buffers`` are its fragments, each a shape, a type and a layout, or ``"shared"`` in its place.
    Each statement, of a list or of a text with ``;`` between them, is a store over all of its
    buffer, in ``vi`` and ``vj``, which a name alone stands for: ``F = A``. Lines that begin with
    ``for`` or ``if`` open a block for the ones after them that are indented. ``S: for r in range(8)
    at ROW, COLUMN = VALUE`` stores S at other indices, and ``S[vi, vj] over 8 = ...`` goes over
    ``vk`` as well.
    """
    shapes = {name: tuple(one[0]) for name, one in {**tensors, **buffers}.items()}
    parameters = ", ".join(
        f'{name}: T.Buffer({tuple(shape)}, "{dtype}")' for name, (shape, dtype) in tensors.items()
    )
    lines = ["@T.prim_func(s_tir=True)", f"def main({parameters}):"]
    for name, (shape, dtype, layout) in buffers.items():
        scope = layout if layout == "shared" else "local"
        lines.append(
            f'    {name} = T.sblock_alloc_buffer({tuple(shape)}, "{dtype}", scope="{scope}")'
        )
    for number, statement in enumerate(in_turn(statements)):
        lines += _lines(_indexed(statement, shapes), shapes, number)
    func = tvm.script.from_source("\n".join(lines) + "\n")
    pairs = [[n, str(one[2])] for n, one in buffers.items() if one[2] != "shared"]
    return tvm.IRModule({"main": func.with_attr("layout_ext.fragment", pairs)})


def in_turn(statements: str | Sequence[str]) -> list[str]:
    return statements.split("; ") if isinstance(statements, str) else list(statements)


def _indexed(statement: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """A statement in which every buffer that stands alone has its indices."""
    if re.match(r"\w+: for ", statement.strip()):
        return statement
    names = "|".join(shapes)
    indices = {name: ", ".join(_VARIABLES[: len(shape)]) for name, shape in shapes.items()}
    return re.sub(rf"\b({names})\b(?!\[|')", lambda m: f"{m[1]}[{indices[m[1]]}]", statement)


def _lines(statement: str, shapes: Mapping[str, tuple[int, ...]], number: int) -> list[str]:
    body = statement.strip()
    indent = "    " + statement[: len(statement) - len(statement.lstrip())]
    if body.endswith(":") or body.startswith("vk ="):
        return [indent + body]
    if (walk := re.match(r"(\w+): (for .*) at (.*), (.*) = (.*)", body)) is not None:
        name, loop, row, column, value = walk.groups()
        return [
            f"{indent}{loop}:",
            f'{indent}    with T.sblock("{name}_{number}"):',
            f"{indent}        vi = T.axis.spatial({shapes[name][0]}, {row})",
            f"{indent}        vj = T.axis.spatial({shapes[name][1]}, {column})",
            f"{indent}        {name}[vi, vj] = {value}",
        ]
    name = body.split("[")[0]
    shape = shapes[name]
    variables, kinds = list(_VARIABLES[: len(shape)]), "S" * len(shape)
    if (summed := re.search(r"\] over (\d+) =", body)) is not None:
        shape, kinds = (*shape, int(summed[1])), kinds + "R"
        variables.append("vk")
        body = body.replace(f" over {summed[1]} =", " =")
    loops = [f"i{number}_{d}" for d in range(len(shape))]
    listed = f"[{', '.join(loops)}]" if len(shape) > 1 else f"[{loops[0]}]"
    sizes = ", ".join(map(str, shape))
    return [
        f"{indent}for {', '.join(loops)} in T.grid({sizes}):",
        f'{indent}    with T.sblock("{name}_{number}"):',
        f'{indent}        {", ".join(variables)} = T.axis.remap("{kinds}", {listed})',
        f"{indent}        {body}",
    ]


def before_the_pass(mod: tvm.IRModule) -> tvm.IRModule:
    first, _ = lowering_passes()
    for one in first:
        if pass_name(one) == NAME:
            return mod
        mod = one(mod)
    raise AssertionError(f"{NAME} is not in the pipeline.")


def combined(mod: tvm.IRModule) -> tuple[tvm.IRModule, tvm.IRModule, list[str]]:
    """The function before and after the pass, and what the pass told."""
    before = before_the_pass(mod)
    with decisions.collect() as made:
        after = CombineLayoutConversions()(before)
    return before, after, [f"{d.subject}: {d.text}" for d in made]


def stores(mod: tvm.IRModule) -> list[str]:
    """The stores in order, without the loops and indices, or these as letters."""
    script = mod["main"].script()
    found = re.findall(r"^\s*(\w+\[[^\n=]*\] = .*)$", script, re.MULTILINE)
    named = r"\b(i|ax)(\d+_)?(\d+)(_\d+)*\b"
    told = [re.sub(named, lambda m: "ij"[int(m[3])], one) for one in found]
    return [re.sub(r"\[i(, j)?\]", "", one) for one in told]


def conversions_in(mod: tvm.IRModule) -> int:
    """Count the conversions that move data between threads."""
    func = mod["main"]
    graph = read_graph(func.body, collect_fragments(func))
    return sum(Conversion(op).moves for op in graph.copies())


def versioned_tiles(
    layouts: Sequence[Any], stages: int, swizzle: str = "", rows: int = 64
) -> s_tir.Schedule:
    """Tiles of 64x64 come through shared memory of several versions, then change their layout.

    ``layouts`` are of the register tiles, the last one first; the matrix has rows of 256.
    """
    sch = computed((rows, 256), lambda a, i, j: a[i, j], "float16")
    block = sch.get_sblock("B")
    i, j = sch.get_loops(block)
    across, i = sch.split(i, [None, 64])
    outer, j = sch.split(j, [None, 64])
    sch.reorder(across, outer, i, j)
    sch.bind(across, "blockIdx.x")
    for layout in layouts:
        block = sch.cache_read(block, 0, "local")
        sch.compute_at(block, outer)
        sch.set_fragment_layout(block, 0, layout)
    staged = sch.cache_read(block, 0, "shared")
    sch.compute_at(staged, outer)
    _, x = sch.split(sch.fuse(*sch.get_loops(staged)[2:]), [None, 128])
    sch.bind(x, "threadIdx.x")
    if swizzle:
        sch.swizzle(staged, mode=swizzle)
    sch.double_buffer(staged, stages)
    return sch
