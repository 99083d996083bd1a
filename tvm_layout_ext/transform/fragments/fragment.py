"""Register tiles: logical buffers of a block's shape, spread over its threads by a layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlock

from ...errors import LayoutError, ScheduleError
from ...gpu.hardware import WARP_SIZE
from ...ir.annotations import FRAGMENT
from ...ir.contents import contents
from ...ir.queries import is_among, loads_in, nodes_in
from ...layout import (
    BlockedLayout,
    DistributedLinearLayout,
    DotOperandLayout,
    Layout,
    LinearLayout,
    NVMMADistributedLayout,
    SliceLayout,
    parse,
)
from ...layout.conversion.per_thread import per_thread

_DISTRIBUTED = (
    BlockedLayout,
    SliceLayout,
    NVMMADistributedLayout,
    DotOperandLayout,
    DistributedLinearLayout,
)


@dataclass(frozen=True, eq=False)
class Fragment:
    """One register tile."""

    #: The logical buffer.
    buffer: Any
    #: The layout as it was given.
    text: str
    #: From register, lane, warp and block to the tile; no register that is only a copy.
    layout: LinearLayout
    #: The buffer that each thread has instead.
    registers: Any

    @property
    def name(self) -> str:
        """The user's name of the buffer."""
        return str(self.buffer.name)

    @property
    def own(self) -> LinearLayout:
        """From register and thread to the tile."""
        return per_thread(self.layout)

    @property
    def threads(self) -> int:
        """Threads over which the tile is spread."""
        return WARP_SIZE * self.layout.in_sizes["warp"]


class Fragments:
    """The register tiles of a function, to be found by their buffers."""

    def __init__(self, fragments: list[Fragment]) -> None:
        self._fragments = fragments

    def __iter__(self) -> Iterator[Fragment]:
        return iter(self._fragments)

    def of(self, buffer: Any) -> Fragment | None:
        """Find the tile of a buffer; None if it is an ordinary one."""
        return next((f for f in self._fragments if f.buffer.same_as(buffer)), None)

    def loaded(self, node: Any) -> list[tuple[Fragment, Any]]:
        """List the tiles that an expression or statement loads, with the loads."""
        pairs = ((self.of(load.source), load) for load in loads_in(node))
        return [(fragment, load) for fragment, load in pairs if fragment is not None]

    def touched(self, stmt: Any) -> list[Fragment]:
        """List the tiles that a statement loads or stores by index."""
        stored = (self.of(store.buffer) for store in nodes_in(stmt, tirx.BufferStore))
        return [*(one for one, _ in self.loaded(stmt)), *(one for one in stored if one is not None)]


def collect_fragments(func: tirx.PrimFunc) -> Fragments:
    """Read the annotations of a function and its blocks; each must fit one buffer in registers."""
    allocated = [
        buffer for block in contents(func.body).nodes(SBlock) for buffer in block.alloc_buffers
    ]
    texts: dict[int, str] = {}
    fragments: list[Fragment] = []
    for near, name, text in _requests(func):
        buffer = _named(name, near, allocated)
        key = buffer.__chandle__()
        if texts.setdefault(key, text) != text:
            raise ScheduleError(f"Buffer {name} is given two layouts, {texts[key]} and {text}.")
        if not any(f.buffer.same_as(buffer) for f in fragments):
            fragments.append(_fragment(buffer, text))
    return Fragments(fragments)


def _requests(func: tirx.PrimFunc) -> Iterator[tuple[list[list[Any]], str, str]]:
    """Yield the buffers that the annotated block writes and reads, a buffer name and a layout."""
    found: list[tuple[list[list[Any]], Any]] = [([], func.attrs.get(FRAGMENT, None))]
    for block in contents(func.body).nodes(SBlock):
        near = [[region.source for region in side] for side in (block.writes, block.reads)]
        found.append((near, block.annotations.get(FRAGMENT, None)))
    for near, value in found:
        texts = [] if value is None else _flat(value)
        for name, text in zip(texts[::2], texts[1::2], strict=True):
            yield near, name, text


def _flat(value: Any) -> list[str]:
    texts = [str(t) for v in value for t in ([v] if isinstance(v, str) else v)]
    if isinstance(value, str) or len(texts) % 2:
        raise ScheduleError(
            f"{FRAGMENT} is {value}; it must list buffer names, each followed by a layout."
        )
    return texts


def _named(name: str, near: list[list[Any]], allocated: list[Any]) -> Any:
    """Look among the annotated block's own buffers first; names may repeat elsewhere."""
    for buffers in (*near, allocated):
        named = [b for b in allocated if b.name == name and is_among(b, buffers)]
        if len(named) == 1:
            return named[0]
        if named:
            raise ScheduleError(f"There are {len(named)} buffers {name}; annotate their blocks.")
    known = ", ".join(sorted({str(b.name) for b in allocated})) or "none"
    raise ScheduleError(f"There is no buffer {name} on the chip to lay out; there are: {known}.")


def _fragment(buffer: Any, text: str) -> Fragment:
    name = str(buffer.name)
    if buffer.scope() != "local":
        raise ScheduleError(
            f"Buffer {name} is in {buffer.scope()} memory; only a local buffer lies in registers."
        )
    if not all(isinstance(size, tirx.IntImm) for size in buffer.shape):
        raise LayoutError(f"Fragment {name} has shape {list(buffer.shape)}; it must be constant.")
    linear = _linear_layout(name, text, [int(size) for size in buffer.shape])
    size = linear.in_sizes["register"]
    registers = tirx.decl_buffer([size], buffer.dtype, name, scope="local")
    return Fragment(buffer, text, linear, registers)


def _linear_layout(name: str, text: str, shape: list[int]) -> LinearLayout:
    """Lay out a register tile of this name and shape."""
    try:
        linear = distributed_layout(text).to_linear(shape)
        per_thread(linear)
    except LayoutError as error:
        raise LayoutError(f"Fragment {name} of shape {shape}: {error}") from None
    return linear.without_zero_bases("register")


def distributed_layout(text: str) -> Layout:
    """Read the text of a layout of registers; LayoutError if it is none."""
    layout = parse(text)
    if not isinstance(layout, _DISTRIBUTED):
        raise LayoutError(f"{layout} is no distributed layout, so it lays out no registers.")
    return layout
