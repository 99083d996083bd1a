"""Extents that are computed from a size, as ``(s - 1) // 4 + 1``, become variables of their own."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir.queries import distinct, is_among, nodes_in, substitute, variables

_OPERATIONS = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod),
    *(tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max),
)


def sizes_as_variables(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let each extent of a parameter be a number or a variable, which rules can cut into tiles.

    Of ``n`` and ``n - 1`` both are variables then, and that one is less than the other is no longer
    known. Where no parameter has ``n`` itself, ``n`` is written by ``n - 1``, and nothing is lost.
    A function which then had a variable that no parameter tells stays as it is, and so does one
    of extents that are no arithmetic, as ``n >> 1``, or a number written as a quotient.
    """
    extents = [n for n in _extents(func) if not isinstance(n, tirx.IntImm | tirx.Var)]
    if not extents or not all(map(_is_arithmetic, extents)):
        return func
    found = func
    while (extent := _least_computed(found)) is not None:
        following = _with_variable(found, extent)
        if tvm_ffi.structural_equal(following, found):
            return func
        found = following
    told, left = [*_extents(found), *found.params], variables(found.body)
    lost = [one for one in _sizes(func) if not is_among(one, told)]
    return func if any(is_among(one, left) for one in lost) else found


def _sizes(func: tirx.PrimFunc) -> list[Any]:
    """Variables of which extents of parameters are computed, each once."""
    return distinct(one for part in _extents(func) for one in variables(part))


def _extents(func: tirx.PrimFunc) -> list[Any]:
    return [extent for param in func.params for extent in getattr(param, "shape", ())]


def _is_arithmetic(extent: Any) -> bool:
    return isinstance(tvm.sym.Analyzer().simplify(extent), (tirx.Var, *_OPERATIONS))


def _least_computed(func: tirx.PrimFunc) -> Any | None:
    """Of the extents that are computed the one of the fewest operations, or None."""
    computed = [n for n in _extents(func) if not isinstance(n, tirx.IntImm | tirx.Var)]
    return min(computed, key=lambda n: len(nodes_in(n, *_OPERATIONS)), default=None)


def _with_variable(func: tirx.PrimFunc, extent: Any) -> tirx.PrimFunc:
    """A function with a variable in the place of one extent, which is computed."""
    extent = tvm.sym.Analyzer().simplify(extent)
    names = {str(one.name) for part in (func.body, *_extents(func)) for one in variables(part)}
    stem = str(variables(extent)[0].name)
    name = next(n for i in range(len(names) + 1) if (n := f"{stem}_{i}") not in names)
    size = tirx.Var(name, str(extent.ty.dtype))
    core, more = _apart(extent)
    if not isinstance(core, tirx.Var):
        return _replaced(func, core, size - more)
    if is_among(core, _extents(func)):
        return _replaced(func, extent, size)
    params = [tirx.Var(core.name, core.ty) if one.same_as(core) else one for one in func.params]
    func = tirx.PrimFunc(params, func.body, func.ret_type, attrs=func.attrs)
    return _replaced(substitute(func, {core: size - more}), None, None)


def _apart(extent: Any) -> tuple[Any, int]:
    """An extent as something and a number."""
    if isinstance(extent, tirx.Add | tirx.Sub) and isinstance(extent.b, tirx.IntImm):
        more = int(extent.b)
        return extent.a, more if isinstance(extent, tirx.Add) else -more
    return extent, 0


def _replaced(func: tirx.PrimFunc, computed: Any, value: Any) -> tirx.PrimFunc:
    """A function with a value where something is computed, and sizes simplified."""
    analyzer = tvm.sym.Analyzer()
    sizes = [*_sizes(func), *func.params, *([] if value is None else variables(value))]

    def plain(node: Any) -> Any:
        if not all(is_among(one, sizes) for one in variables(node)):
            return node
        node = analyzer.simplify(node)
        return value if tvm_ffi.structural_equal(node, computed) else node

    rules = [(kind, plain) for kind in _OPERATIONS]
    return tvm_ffi.structural_map(func, rules, order="post")
