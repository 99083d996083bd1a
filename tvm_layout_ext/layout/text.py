"""Reading layouts back from their text form, which is what ``repr`` gives."""

from __future__ import annotations

import ast
from typing import Any

from ..errors import LayoutError
from ..text import suggestion
from .base import Layout
from .distributed import BlockedLayout, DistributedLinearLayout, SliceLayout
from .linear import LinearLayout
from .shared import NVMMASharedLayout, PaddedSharedLayout, SwizzledSharedLayout
from .tensor_core import DotOperandLayout, NVMMADistributedLayout

#: What ends a sentence on a text that is none: one that is.
_EXAMPLE = (
    ", e.g. Blocked(size_per_thread=[1, 4], threads_per_warp=[8, 4], warps_per_cta=[4, 1], "
    "order=[1, 0])."
)
#: Every class with a text form, by the name that the text begins with.
LAYOUT_CLASSES: dict[str, type[Layout]] = {
    cls.text_name: cls
    for cls in (
        BlockedLayout,
        SliceLayout,
        NVMMADistributedLayout,
        DotOperandLayout,
        DistributedLinearLayout,
        SwizzledSharedLayout,
        PaddedSharedLayout,
        NVMMASharedLayout,
    )
}


def parse(text: str) -> Layout | LinearLayout:
    """Make the layout that a text describes.

    Parameters
    ----------
    text : str
        A call such as ``Blocked([1, 4], [8, 4], [4, 1], order=[1, 0])``, with the fields by
        position or by name; the class names are those of this package, "Layout" left off if you
        like. A linear layout is ``Linear({lane: [[1], [2]]}, {x: 4})``.

    Examples
    --------
    >>> parse("Slice(1, Blocked([1, 4], [8, 4], [4, 1], [1, 0]))").dim
    1
    >>> parse("Linear({lane: [[1], [2]]}, {x: 4})").is_bijective()
    True
    """
    if not isinstance(text, str):
        raise LayoutError(f"A layout's text must be a str, not {text!r}.")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise LayoutError(f"{text!r} is not of the form Name(field=value, ...){_EXAMPLE}") from None
    if not isinstance(tree, ast.Call):
        raise LayoutError(f"{text!r} is not of the form Name(field=value, ...){_EXAMPLE}")
    return _call(tree)


def _call(node: ast.Call) -> Layout | LinearLayout:
    name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
    name = name.removesuffix("Layout")
    if any(keyword.arg is None for keyword in node.keywords):
        raise LayoutError(f"{ast.unparse(node)!r} uses **, which has no meaning here.")
    _check_once([str(keyword.arg) for keyword in node.keywords], node, "field")
    args = [_value(arg) for arg in node.args]
    fields = {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}
    if name == "Linear":
        return _linear(args, fields)
    if name not in LAYOUT_CLASSES:
        names = [*LAYOUT_CLASSES, "Linear"]
        raise LayoutError(
            f"There is no layout {name!r}; there are {', '.join(names)}.{suggestion(name, names)}"
        )
    try:
        return LAYOUT_CLASSES[name](*args, **fields)
    except (TypeError, AttributeError) as error:
        raise LayoutError(f"{name} cannot be made of {ast.unparse(node)!r}: {error}.") from None


def _linear(args: list[Any], fields: dict[str, Any]) -> LinearLayout:
    try:
        return LinearLayout.from_bases(*args, **fields, surjective=False)
    except (TypeError, AttributeError):
        text = "Linear takes {input: [[...], ...], ...} and {output: size, ...}."
        raise LayoutError(text) from None


def _check_once(names: list[str], node: ast.expr, what: str) -> None:
    """Refuse a name given twice: Python would take the last one."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise LayoutError(f"{ast.unparse(node)!r} gives the {what} {twice!r} more than once.")


def _value(node: ast.expr) -> Any:
    """Read a number, True, False, None, a list, a nested layout, or a dict keyed by bare names."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, type(None))):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(element) for element in node.elts]
    if isinstance(node, ast.Call):
        return _call(node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand)
        if isinstance(value, int):
            return -value
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Name) for key in node.keys):
        names = [key.id for key in node.keys if isinstance(key, ast.Name)]
        _check_once(names, node, "dim")
        return dict(zip(names, map(_value, node.values), strict=True))
    raise LayoutError(f"{ast.unparse(node)!r} is no value of a layout's field{_EXAMPLE}")
