"""Compiles statements without barriers: all threads that are active run each to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import ir, tirx

from ...errors import NotModelled
from ...gpu import hardware
from ...ir import ops
from ...ir.pointers import is_policy_store, plain_store
from ...ir.queries import op_name
from ..memory import async_copy
from ..model.code import FIXED, LAUNCH, UNIFORM, VARYING, Code, Run, in_turn
from ..model.places import handle
from ..model.values import numpy_type
from ..model.warp_batch import CLUSTER_AXIS
from .copy_calls import COPY_CALLS
from .device import DeviceCompiler
from .matrix_calls import MATRIX_CALLS
from .unit_calls import UNIT_CALLS

_CALLS = MATRIX_CALLS | UNIT_CALLS | COPY_CALLS
#: The last does nothing where kernels run one after another; :mod:`.overlap` checks that it is
#: there.
_NOTHING = (ops.ASSUME, ops.CUDA_THREAD_FENCE, ops.PTX_GRIDDEPCONTROL)


class PlainCompiler(DeviceCompiler):
    """Compiles a statement to one function of a path and a mask of its threads."""

    def plain(self, statement: Any) -> Run | None:
        """Compile a statement without synchronisation; None if there is nothing to do."""
        handler = _PLAIN.get(type(statement).__name__)
        if handler is None:
            raise NotModelled(
                f"The simulated GPU does not model the statement {type(statement).__name__}."
            )
        if not isinstance(statement, tirx.SeqStmt):
            self.enter(statement)
        return handler(self, statement)

    def _plain_attribute(self, statement: Any) -> Run | None:
        before, after = self.attribute(statement)
        return in_turn([before, self.plain(statement.body), after])

    def attribute(self, statement: Any) -> tuple[Run | None, Run | None]:
        """What an attribute does before and after its body."""
        key = str(statement.attr_key)
        if key in ("thread_extent", "virtual_thread"):
            self._bind_thread(statement)
        elif key == "async_commit_queue_scope":
            return None, async_copy.commit
        elif key == "async_wait_queue_scope":
            # The attribute right inside says how many groups may stay under way.
            return async_copy.wait(self.expr(statement.body.value)), None
        return None, None

    def _bind_thread(self, statement: Any) -> None:
        tag = str(statement.node.thread_tag)
        if not tag.startswith(("threadIdx.", "blockIdx.", CLUSTER_AXIS)):
            raise NotModelled(f"The simulated GPU does not model the thread axis {tag}.")
        dtype, _ = numpy_type(statement.node.var)
        axis = tag.replace(CLUSTER_AXIS, "blockIdx.")
        # Clusters are neighbours that begin at a multiple of their size.
        size = int(statement.value) if axis != tag else None

        def index(s: Any, m: Any) -> Any:
            found = s.batch.index[axis]
            return (found if size is None else found % size).astype(dtype)

        self.scope[handle(statement.node.var)] = self.cached(Code(index, FIXED))

    def _plain_bind(self, statement: Any) -> Run | None:
        kept = self.bind(statement.var, statement.value)
        self.note_value(statement.var, statement.value)
        if not kept:
            return None

        def keep(s: Any, m: Any) -> None:
            for slot, run in kept:
                s.slots[slot] = _own(run(s, m))

        return keep

    def _plain_if(self, statement: Any) -> Run:
        condition = self.cached(self.expr(statement.condition))
        key = self.new_cache()
        with self.nvcc.branch():
            yes = self.plain(statement.then_case) or _nothing
        with self.nvcc.branch():
            no = self.plain(statement.else_case) if statement.else_case is not None else None
        self.enter(statement)
        site = self.site("if")
        test, fixed = condition.pair, condition.rank in (LAUNCH, FIXED)

        def run(s: Any, m: Any) -> None:
            c = s.batch.defined(site, m, *test(s, m))
            if np.ndim(c) == 0:
                if c:
                    yes(s, m)
                elif no is not None:
                    no(s, m)
                return
            inside, outside = _split(s.batch, m, c, key if fixed else None)
            if inside is not _EMPTY:
                yes(s, inside)
            if no is not None and outside is not _EMPTY:
                no(s, outside)

        return run

    def _plain_for(self, statement: Any) -> Run | None:
        slot = self.new_slot()
        dtype, _ = numpy_type(statement.loop_var)
        first, extent = self.expr(statement.min), self.expr(statement.extent)
        even = first.rank in (LAUNCH, UNIFORM) and not first.taint
        self.scope[handle(statement.loop_var)] = Code(
            lambda s, m: s.slots[slot], UNIFORM if even else VARYING
        )
        step = step_of(statement)
        site = self.site("for")
        self.loops.append((str(statement.loop_var.name), slot))
        with self.nvcc.loop(statement, slot):
            body = self.plain(statement.body)
        self.loops.pop()
        if body is None:
            return None
        even = even and extent.rank in (LAUNCH, UNIFORM) and not extent.taint
        maker = _even_loop if even else _ragged_loop
        return maker(slot, dtype, first, extent, step, body, site)

    def _plain_evaluate(self, statement: Any) -> Run | None:
        call = statement.value
        if not isinstance(call, ir.Call):
            return None
        name = op_name(call)
        self.nvcc.call(call)
        if name in (ops.CUDA_WARP_SYNC, ops.TVM_STORAGE_SYNC):
            # That of TVM for a warp prints as nothing: for its all-reduce, threads stay together.
            if name == ops.TVM_STORAGE_SYNC and str(call.args[0].value) != "warp":
                raise NotModelled(f"The simulated GPU does not model {call}.")
            return _join_warps
        if name in _NOTHING:
            return None
        if name in _CALLS:
            return _CALLS[name](self, call)
        if is_policy_store(call):
            store = plain_store(call)
            self.enter(store)
            return self.store(store)
        return self.expr(call).run


_EMPTY = object()


def _nothing(s: Any, m: Any) -> None:
    """Do nothing."""


def _join_warps(s: Any, m: Any) -> None:
    mask = s.batch.active(m)
    s.batch.clocks.join_warps(mask.reshape(-1, hardware.WARP_SIZE).any(axis=1))


def _own(value: Any) -> Any:
    """Copy of a value that is a view of a local array, which may change."""
    if isinstance(value, tuple):
        return _own(value[0]), value[1]
    if isinstance(value, np.ndarray) and value.base is not None:
        return value.copy()
    return value


def step_of(statement: Any) -> int:
    """By how much the variable of a loop goes up from one iteration to the next."""
    step = getattr(statement, "step", None)
    return 1 if step is None else int(step.value)


def _split(batch: Any, mask: Any, c: Any, key: int | None) -> tuple[Any, Any]:
    """Threads inside and outside a condition; `_EMPTY` if there are none."""
    if key is not None:
        known = batch.masks.get((key, id(mask)))
        if known is not None and known[0] is mask:
            return known[1], known[2]
    whole = batch.active(mask)
    inside = whole & c
    outside = whole & ~inside
    parts = (
        mask if not outside.any() else inside if inside.any() else _EMPTY,
        mask if not inside.any() else outside if outside.any() else _EMPTY,
    )
    if key is not None:
        batch.masks[key, id(mask)] = mask, *parts
    return parts


def _even_loop(
    slot: int, dtype: Any, first: Code, extent: Code, step: int, body: Run, site: Any
) -> Run:
    def run(s: Any, m: Any) -> None:
        start = int(first.run(s, m))
        slots, make = s.slots, dtype.type
        for i in range(start, start + int(extent.run(s, m)), step):
            slots[slot] = make(i)
            body(s, m)

    return run


def _ragged_loop(
    slot: int, dtype: Any, first: Code, extent: Code, step: int, body: Run, site: Any
) -> Run:
    low, size = first.pair, extent.pair

    def run(s: Any, m: Any) -> None:
        batch = s.batch
        start, p = low(s, m)
        length, q = size(s, m)
        mask = batch.active(m)
        for codes in (p, q):
            mask = mask & batch.defined(site, mask, np.True_, codes)
        turns = np.broadcast_to(length, (batch.size,))
        most = int(turns[mask].max(initial=0))
        for i in range(0, most, step):
            inside = mask & (turns > i)
            s.slots[slot] = (start + np.asarray(i)).astype(dtype)
            body(s, m if inside.all() else inside)

    return run


_PLAIN: dict[str, Callable[[PlainCompiler, Any], Run | None]] = {
    "SeqStmt": lambda c, statement: in_turn([c.plain(part) for part in statement.seq]),
    "AttrStmt": PlainCompiler._plain_attribute,
    **dict.fromkeys(("AllocBuffer", "DeclBuffer", "AssertStmt"), lambda c, statement: None),
    "Bind": PlainCompiler._plain_bind,
    "BufferStore": PlainCompiler.store,
    "IfThenElse": PlainCompiler._plain_if,
    "For": PlainCompiler._plain_for,
    "Evaluate": PlainCompiler._plain_evaluate,
}
