"""The schedules that the tutorials make, without what they print of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from tvm import s_tir

from tests.golden.programs.program import Program

__all__ = ["programs"]

_FOLDER = Path(__file__).parents[3] / "tutorials"
_KEPT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


@cache
def _names(number: str) -> dict[str, Any]:
    """Functions of a tutorial, and its constants that follow from no other statement."""
    (path,) = _FOLDER.glob(f"{number}_*.py")
    found: dict[str, Any] = {"__file__": str(path), "__name__": path.stem}
    for part in ast.parse(path.read_text()).body:
        if isinstance(part, _KEPT) or _is_constant(part):
            with suppress(NameError):
                exec(compile(ast.Module([part], []), str(path), "exec"), found)
    return found


def _is_constant(part: ast.stmt) -> bool:
    """Whether a statement gives a value to names in capitals, such as sizes or a folder."""
    if not isinstance(part, ast.Assign):
        return False
    names = ast.walk(part.targets[0])
    return all(n.id.isupper() for n in names if isinstance(n, ast.Name))


def _te_style(number: str, function: str, **arguments: Any) -> Any:
    """The module of a schedule in TE's style, which comes with its arguments."""
    s, *tensors = _names(number)[function](**arguments)
    return s.to_module(tensors)


def _made(number: str, function: str, *arguments: Any) -> Any:
    return _names(number)[function](*arguments)


def _transposed(**options: Any) -> s_tir.Schedule:
    sch = s_tir.Schedule(_names("04")["transpose"])
    sch.auto_coalesce("B", num_threads=128, **options)
    return sch


def _tuned(tile: int, offset: int) -> s_tir.Schedule:
    tutorial = _names("07")
    sch = s_tir.Schedule(tutorial["te"].create_prim_func(_turned(tutorial["te"])))
    tutorial["schedule"](sch, {"tile": tile, "offset": offset})
    # Without an annotation of ours it would be TVM's alone.
    sch.eviction_policy("B", "")
    return sch


def _turned(te: Any) -> list[Any]:
    a = te.placeholder((128, 128), "float32", name="A")
    return [a, te.compute((128, 128), lambda i, j: a[j, i] * 2.0, name="B")]


def programs() -> Iterator[Program]:
    for align in (None, (100, 8), (32, 1)):
        name = "plain" if align is None else "-".join(map(str, align))
        made = partial(_te_style, "01", "small_row_sum", align=align)
        yield Program(f"tutorial/row-sum-{name}", made, 1)
    for stages in (1, 2):
        made = partial(_te_style, "02", "copy_schedule", num_stages=stages)
        yield Program(f"tutorial/copy-{stages}-versions", made, 1)
    yield Program("tutorial/transpose", _transposed, 1)
    yield Program("tutorial/transpose-unstaged", partial(_transposed, stage="none"), 1)
    for mode in ("none", "pad", "xor", "auto"):
        for rows in (1, 2):
            made = partial(_made, "05", "operand", mode, rows)
            yield Program(f"tutorial/operand-{mode}-{rows}", made, int(rows == 1))
    for stages in (1, 2, 3):
        for prefetch in (False, True):
            name = f"tutorial/gemm-{stages}{'-prefetched' if prefetch else ''}"
            yield Program(name, partial(_made, "06", "product", stages, prefetch), int(stages == 3))
    for tile, offset in ((16, 0), (32, 1), (32, 2)):
        yield Program(f"tutorial/tuned-{tile}-{offset}", partial(_tuned, tile, offset))
