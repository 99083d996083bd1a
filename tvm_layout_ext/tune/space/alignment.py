"""Vectors and matrix rows whose addresses are surely no multiples of their size.

TVM's CUDA stores a vector in one access, whatever its address is, while it loads one element by
element unless its address is sure to be a multiple; ``ldmatrix`` takes the addresses that it is
given. A GPU ends a kernel that makes an access at an address that is no multiple of its bytes (PTX
ISA, "Addresses as operands"), and its context is lost with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from ...analysis.nest import element_bytes
from ...gpu.hardware import MATRIX_ROW_BYTES, MAX_ACCESS_BYTES, WARP_SIZE
from ...ir import ops
from ...ir.annotations import ASYNC_COPY, SWIZZLE
from ...ir.evaluate import evaluate
from ..model.access_cost import flat, padded_strides, strides_of
from ..model.kernel_facts import KernelFacts
from ..model.sites import AccessSite

__all__ = ["misaligned", "seems_misaligned"]

#: Threads and iterations that are looked at, drawn at random but for the first and the last.
SAMPLES = 1024
#: Swizzles that keep vectors whole by themselves, and say so where they cannot.
_CAREFUL = ("auto", "none", "pad", "xor")
_FIRST_ROWS = 8
#: Bytes of a thread that ``cp.async`` copies.
_COPIES = (4, 8, 16)


def seems_misaligned(kernel: KernelFacts) -> bool:
    """Whether an access of a scheduled kernel may lie askew, so that lowering it is worth a second.

    Parameters
    ----------
    kernel : Kernel
    """
    return any(
        _swizzle_tears(site) or _copy_tears(site) or _rows_tear(kernel, site)
        for site in kernel.sites
        if site.scope == "global" or site.scope.startswith("shared")
    )


def _swizzle_tears(site: AccessSite) -> bool:
    mode = str(site.notes.get(SWIZZLE, "none"))
    return site.kind == "store" and mode not in _CAREFUL and site.vector > 1


def _copy_tears(site: AccessSite) -> bool:
    """Whether a copy that has to be asynchronous is none that ``cp.async`` makes."""
    demanded = site.kind == "store" and int(site.notes.get(ASYNC_COPY, 0)) == 1
    return demanded and site.scope != "global" and site.vector * site.size not in _COPIES


def _rows_tear(kernel: KernelFacts, site: AccessSite) -> bool:
    shared = site.scope != "global"
    if shared and kernel.tiles[site.buffer.__chandle__()].is_swizzled:
        return False
    strides = (
        padded_strides(kernel.tiles[site.buffer.__chandle__()])
        if shared
        else strides_of(site.buffer)
    )
    if "ldmatrix" in site.instruction or "stmatrix" in site.instruction:
        return shared and any(stride * site.size % MATRIX_ROW_BYTES for stride in strides[:-1])
    unit = _unit(site.vector, site.size)
    if site.kind == "load" or site.instruction or unit == 1:
        return False
    indices = _first_elements(kernel, site)
    return indices is not None and bool(np.any(flat(indices, strides) % unit))


def _first_elements(kernel: KernelFacts, site: AccessSite) -> list[Any] | None:
    """Indices of vectors' first elements, those in shared memory from its first element on.

    None where an index is loaded.
    """
    rng = np.random.default_rng(0)
    mine = kernel.of_buffer(site.buffer)
    shared = site.scope != "global"
    drawn: dict[str, Any] = {}
    values: dict[int, Any] = {}
    for number, loop in enumerate(site.loops):
        common = all(any(loop is one for one in other.loops) for other in mine)
        if loop.kind == "vectorized" or (shared and not loop.is_thread and common):
            continue
        some = rng.integers(0, loop.extent, SAMPLES)
        some[:2] = 0, loop.extent - 1
        values[number] = drawn.setdefault(loop.kind, some) if loop.is_thread else some
    found = site.at(values)
    if any(index is None for index in found):
        return None
    return [index - np.min(index) for index in found] if shared else found


def _unit(lanes: int, size: int) -> int:
    """Elements to a multiple of which a vector has to lie: a vector of 3 goes one by one."""
    return min(lanes & -lanes, max(1, MAX_ACCESS_BYTES // size))


def misaligned(name: str, kernel: tirx.PrimFunc) -> str | None:
    """Find an access of a device function that some thread surely makes at a crooked address.

    Threads and iterations are drawn, and every condition on the way is evaluated for them, so that
    what is found is an access that happens. What cannot be evaluated, such as a loaded index, is
    taken to be right.

    Parameters
    ----------
    name : str
        Of the kernel, for the sentence.
    kernel : PrimFunc
        As :func:`tvm_layout_ext.build.device_program` gives it.

    Returns
    -------
    str or None
        One sentence.

    Examples
    --------
    >>> misaligned("main_kernel", kernel)  # doctest: +SKIP
    'Kernel main_kernel stores 16 bytes at byte 72 of A_shared; only multiples of 16 are legal.'
    """
    for found in _AlignmentWalk().visit(kernel.body, {}, np.ones(SAMPLES, bool)):
        return f"Kernel {name} {found}"
    return None


class _AlignmentWalk:
    """Goes through a flat program with many threads at a time."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.threads: dict[str, Any] = {}

    def visit(self, stmt: Any, env: dict[Any, Any], active: Any) -> Iterator[str]:
        """Sentences on what the active threads do at crooked addresses."""
        if isinstance(stmt, tirx.SeqStmt):
            # What a Bind binds is known to those after it.
            env = dict(env)
            for part in stmt.seq:
                if isinstance(part, tirx.Bind):
                    self._bind(env, part.var, part.value)
                yield from self.visit(part, env, active)
        elif isinstance(stmt, tirx.For):
            yield from self._loop(stmt, env, active)
        elif isinstance(stmt, tirx.AttrStmt):
            if stmt.attr_key == "thread_extent":
                env = env | {stmt.node.var: self._thread(str(stmt.node.thread_tag), stmt.value)}
            yield from self.visit(stmt.body, env, active)
        elif isinstance(stmt, tirx.IfThenElse):
            condition = _known(stmt.condition, env)
            if condition is not None:
                yield from self.visit(stmt.then_case, env, active & (condition != 0))
                if stmt.else_case is not None:
                    yield from self.visit(stmt.else_case, env, active & (condition == 0))
        elif isinstance(stmt, tirx.BufferStore):
            yield from _stored(stmt, env, active)
        elif isinstance(stmt, tirx.Evaluate) and isinstance(stmt.value, tvm.ir.Call):
            yield from self._rows(stmt.value, env, active)

    def _loop(self, loop: Any, env: dict[Any, Any], active: Any) -> Iterator[str]:
        first, extent = _known(loop.min, env), _known(loop.extent, env)
        if first is None or extent is None:
            return
        value = first + self._drawn(extent)
        yield from self.visit(loop.body, env | {loop.loop_var: value}, active & (extent > 0))

    def _thread(self, tag: str, extent: Any) -> Any:
        """Numbers of the threads along an axis, of which only the first counts if nobody knows."""
        if tag not in self.threads:
            known = int(extent) if isinstance(extent, int | tirx.IntImm) else 1
            self.threads[tag] = self._drawn(known)
        return self.threads[tag]

    def _drawn(self, extent: Any) -> Any:
        drawn = np.floor(self.rng.random(SAMPLES) * extent).astype(np.int64)
        drawn[0], drawn[1] = 0, int(np.broadcast_to(extent, SAMPLES)[1]) - 1
        return drawn

    def _bind(self, env: dict[Any, Any], var: Any, value: Any) -> None:
        found = _known(value, env) if str(var.ty).startswith(("int", "uint", "bool")) else None
        if found is not None:
            env[var] = found

    def _rows(self, call: Any, env: Mapping[Any, Any], active: Any) -> Iterator[str]:
        kind = str(getattr(call.op, "name", "")).rpartition(".")[2]
        if kind not in ("ldmatrix", "stmatrix"):
            return
        # The first 8 lanes of a warp, which lies along x, give the rows of the first matrix.
        active = active & (self.threads.get("threadIdx.x", 0) % WARP_SIZE < _FIRST_ROWS)
        for argument in call.args:
            if isinstance(argument, tvm.ir.Call) and argument.op.name == ops.ADDRESS_OF:
                (load,) = argument.args
                if str(load.source.scope()).startswith("shared") and len(load.indices) == 1:
                    verb = f"makes {kind} take"
                    (index,) = load.indices
                    width = MATRIX_ROW_BYTES
                    yield from _crooked(verb, load.source, index, width, env, active)


def _stored(store: Any, env: Mapping[Any, Any], active: Any) -> Iterator[str]:
    (index, *more) = store.indices
    scope = str(store.buffer.scope())
    if more or not isinstance(index, tirx.Ramp) or not _is_one(index.stride):
        return
    if scope == "global" or scope.startswith("shared"):
        size = element_bytes(store.buffer)
        width = _unit(int(index.lanes), size) * size
        yield from _crooked("stores", store.buffer, index.base, width, env, active)


def _crooked(
    verb: str, buffer: Any, index: Any, width: int, env: Mapping[Any, Any], active: Any
) -> Iterator[str]:
    found = _known(index, env)
    if found is None:
        return
    offset = buffer.ty.elem_offset
    if not isinstance(offset, int | tirx.IntImm):
        return
    address = np.broadcast_to((found + int(offset)) * element_bytes(buffer), SAMPLES)
    crooked = address[active & (address % width != 0)]
    if len(crooked):
        yield (
            f"{verb} {width} bytes at byte {int(crooked.min()):,} of {buffer.name}; only multiples "
            f"of {width} are legal."
        )


def _is_one(value: Any) -> bool:
    return isinstance(value, int | tirx.IntImm) and int(value) == 1


def _known(value: Any, env: Mapping[Any, Any]) -> Any:
    """An expression's values; None if they depend on more than the known variables."""
    if isinstance(value, int):
        return np.int64(value)
    free: list[Any] = []
    tvm_ffi.structural_walk(value, [(tirx.Var, free.append)])
    if any(not any(var.same_as(one) for one in env) for var in free):
        return None
    try:
        return evaluate(value, dict(env))
    except (KeyError, ZeroDivisionError):
        return None
