"""Lay out shared tiles so that their rows, columns and patches meet every bank once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlock
from tvm.tirx import IterVar

from ... import decisions
from ...analysis.accesses import AccessSite, read_shared_accesses
from ...analysis.bank_conflict import count
from ...analysis.bank_requests import Requests, read_requests
from ...analysis.choose_shared import Choice
from ...analysis.nest import element_bytes
from ...errors import LayoutError
from ...gpu.hardware import CP_ASYNC_SINCE
from ...ir.annotations import ASYNC_COPY, NUM_STAGES, SWIZZLE
from ...ir.contents import contents
from ...ir.pointers import constant, shape_of
from ...ir.queries import nodes_in, thread_tag
from ...ir.rebuild import stripped
from ...layout.placement import Strided, dense
from ...target import capability
from ..base import function_pass, simplified
from .swizzle_access import Rewriter, Swizzled, refuse_unknown
from .swizzle_modes import COUNTED, place

_NAME = "SwizzleSharedMemory"
#: Requests of each access by which ``auto``, ``pad`` and ``xor`` choose.
_SAMPLE = 256


def swizzles_of(block: Any) -> dict[str, str]:
    """Modes that a block asks for, by the name of the buffer."""
    value = block.annotations.get(SWIZZLE, None)
    if value is None:
        return {}
    written = [str(region.source.name) for region in block.writes]
    if isinstance(value, str):
        if len(written) != 1:
            raise LayoutError(
                f"Block {block.name_hint} has one swizzle, {value!r}, and writes {len(written)} "
                f"buffers ({', '.join(written)}); name the buffer."
            )
        return {written[0]: str(value)}
    texts = [str(text) for text in value]
    if len(texts) % 2:
        raise LayoutError(f"Block {block.name_hint} names {texts}; buffers and modes take turns.")
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _requests(func: tirx.PrimFunc) -> list[tuple[Any, str, str, bool]]:
    """List buffer, mode, block, and whether storage_align pads it, for every annotation."""
    found: list[tuple[Any, str, str, bool]] = []
    for block in contents(func.body).nodes(SBlock):
        for name, text in swizzles_of(block).items():
            regions = [r for r in block.writes if str(r.source.name) == name]
            if not regions:
                raise LayoutError(
                    f"Block {block.name_hint} wants buffer {name} swizzled, which it does not "
                    "write."
                )
            buffer = regions[0].source
            known = next((one for one in found if one[0].same_as(buffer)), None)
            if known is not None and known[1] != text:
                raise LayoutError(
                    f"Buffer {name} is to be swizzled by {known[1]} (block {known[2]}) and by "
                    f"{text} (block {block.name_hint}); all its writers must agree."
                )
            if known is None:
                found.append((buffer, text, str(block.name_hint), bool(list(buffer.ty.strides))))
    return found


def _swizzled(
    request: tuple[Any, str, str, bool], accesses: Sequence[AccessSite], has_async: bool
) -> Swizzled | None:
    buffer, text, block, is_padded = request
    name = f"Buffer {buffer.name}, which block {block} wants swizzled by {text}:"
    if not buffer.scope().startswith("shared"):
        raise LayoutError(f"{name} It is in {buffer.scope()} memory; only shared memory has banks.")
    if is_padded:
        raise LayoutError(
            f"{name} storage_align gives it the strides {list(buffer.ty.strides)}; a buffer is "
            "either padded or swizzled."
        )
    shape = shape_of(buffer)
    if shape is None:
        raise LayoutError(f"{name} Its shape {list(buffer.shape)} has no upper bound.")
    if (bits := tvm.DataType(str(buffer.dtype)).bits) < 8:
        raise LayoutError(f"{name} Its elements of {buffer.dtype} have {bits} bits, less than 8.")
    if element_bytes(buffer) not in (1, 2, 4, 8):
        raise LayoutError(f"{name} Its elements have {element_bytes(buffer)} bytes, not 1 to 8.")
    mine = [access for access in accesses if access.buffer.same_as(buffer)]

    def counted() -> list[Requests]:
        return [_counted(_as_executed(access, has_async)) for access in mine]

    try:
        choice = place(text, shape, 8 * element_bytes(buffer), counted)
    except LayoutError as error:
        raise LayoutError(f"{name} {error}") from None
    if ";" not in text:
        _check_vectors(mine, choice, dense(shape), name)
    _note(buffer, text, choice)
    if choice.name == "none" and all(constant(extent) is not None for extent in buffer.shape):
        return None
    return Swizzled(buffer, shape, choice.placement, choice.name, block)


def _check_vectors(
    accesses: Sequence[AccessSite], choice: Choice, plain: Strided, name: str
) -> None:
    """Refuse what would tear or misalign vectors, unless the annotation spells offsets out."""
    for access in accesses:
        requests = read_requests(access, _SAMPLE)
        if requests is None:
            continue
        before = count(requests, plain).vector_bytes
        after = count(requests, choice.placement).vector_bytes
        if after < before:
            raise LayoutError(
                f"{name} The {before}-byte vectors of {access} would fall into {after} bytes; "
                "keep that many together, or ask for auto."
            )


def _as_executed(access: AccessSite, has_async: bool) -> AccessSite:
    """A copy that later passes make asynchronous, if its width allows, as one."""
    marks = access.context.marks
    wish = marks.get(ASYNC_COPY, None)
    if access.kind != "store" or access.source is None or not has_async or wish == 0:
        return access
    runs_ahead = int(marks.get(NUM_STAGES, 1)) > 1
    return replace(access, kind="cp.async") if runs_ahead or wish else access


def _counted(access: AccessSite) -> Requests:
    requests = read_requests(access, _SAMPLE)
    if requests is None:
        raise LayoutError(
            f"The addresses of {access} are not known before it runs; give the swizzle "
            "instead of asking for the cheapest."
        )
    return requests


def _note(buffer: Any, text: str, choice: Choice) -> None:
    chosen = "plain rows" if choice.name == "none" else choice.name
    counts = (
        f", {choice.writes} wavefronts a block to write and {choice.reads} to read, "
        f"{choice.least} without conflicts"
        if text in COUNTED
        else ""
    )
    decisions.note(_NAME, str(buffer.name), f"{chosen}{counts}")


def _thread_vars(func: tirx.PrimFunc) -> list[Any]:
    loops = [loop.loop_var for loop in nodes_in(func.body, tirx.For) if thread_tag(loop)]
    launches = nodes_in(func.body, tirx.AttrStmt)
    return [*loops, *(one.node.var for one in launches if isinstance(one.node, IterVar))]


@function_pass()
def SwizzleSharedMemory(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that lays out annotated shared buffers anew.

    Block annotation ``layout_ext.swizzle`` says how the buffer lies that the block writes:
    :mod:`.swizzle_modes` lists the modes. ``auto``, ``pad`` and ``xor`` are decided here, where all
    accesses are known with their threads, vectors and matrix instructions; copies of pipelines
    count as the ``cp.async`` that they become. Every access of the buffer follows: loads and
    stores, vectors staying whole, ``cp.async``, ``ldmatrix`` and ``stmatrix``.

    Refuses by name: an address given to anything else, an address or a vector whose elements the
    swizzle would tear apart, addresses that only the run knows where counts decide, buffers that
    ``storage_align`` pads, symbolic shapes without a bound, several views of one memory, writers
    that disagree.
    """
    wanted = _requests(func)
    if not wanted:
        return func
    accesses = read_shared_accesses(func)
    for buffer, text, block, _ in wanted:
        refuse_unknown(func.body, buffer, text, block)
    has_async = capability(func.attrs.get("target", None)) >= CP_ASYNC_SINCE
    placed = [_swizzled(request, accesses, has_async) for request in wanted]
    swizzled = [one for one in placed if one is not None]
    body = stripped(func.body, SWIZZLE)
    if not swizzled:
        return func.with_body(body)
    body = Rewriter(swizzled, accesses, _thread_vars(func)).rewrite(body)
    return simplified(func.with_body(body))
