"""``decl_tensor_intrin``: a piece of hardware work, described by the compute that it stands for.

TensorIR compares a loop nest with the description of an intrinsic, and replaces it by the
implementation. Here a TE compute gives the description; the implementation is TVMScript, or a
function of the buffers. Both are registered when a schedule first uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, te, tirx

from ...errors import ScheduleError
from ...ir.queries import blocks_in, substitute
from ...ir.rebuild import whole_region

#: The parts of an intrinsic, by what of a reduction they do.
PARTS = ("body", "reset", "update")


@dataclass
class TensorIntrin:
    """An intrinsic that ``s[tensor].tensorize(axis, intrin)`` takes; not registered yet.

    ``build`` maps a part of :data:`PARTS` and the buffers to the implementation, or None; ``binds``
    has the buffer that the user declared for each, or None.
    """

    name: str
    op: te.ComputeOp
    build: Callable[[str, list[tirx.Buffer]], tirx.PrimFunc | None]
    binds: list[tirx.Buffer | None]
    _registered: dict[tuple[str, ...], str] = field(default_factory=dict, repr=False)

    @property
    def inputs(self) -> list[te.Tensor]:
        """Tensors that the compute reads, in the order of its parameters."""
        return list(self.op.input_tensors)

    def register(self, part: str, scopes: Sequence[str]) -> str:
        """Register one part, unless that is done; the name is the same in every process.

        ``scopes`` are the memory of each input and of the output, where none was declared.
        """
        key = (part, *scopes)
        if key not in self._registered:
            self._registered[key] = self._make(part, scopes)
        return self._registered[key]

    def _make(self, part: str, scopes: Sequence[str]) -> str:
        tensors = [*self.inputs, self.op.output(0)]
        buffers = [
            bound if bound is not None else _declare(tensor, scope)
            for tensor, bound, scope in zip(tensors, self.binds, scopes, strict=True)
        ]
        impl = self.build(part, buffers)
        if impl is None:
            raise ScheduleError(
                f"Intrinsic {self.name} has no {part}, which a reduction needs whose loops are "
                f"partly outside of it; give (body, reset, update)."
            )
        buffers = list(impl.params)
        desc = describe(self.op, part, buffers)
        # The same text in every process, so that a trace read from JSON finds its intrinsic.
        digest = tvm_ffi.structural_hash(impl) ^ tvm_ffi.structural_hash(desc)
        name = f"layout_ext.te.{self.name}.{part}.{digest & 0xFFFFFFFFFFFFFFFF:016x}"
        if s_tir.TensorIntrin.get(name, allow_missing=True) is None:
            s_tir.TensorIntrin.register(name, desc, impl)
        return name


def decl_tensor_intrin(
    op: te.ComputeOp,
    fcompute: Any,
    name: str = "tensor_intrin",
    binds: Mapping[te.Tensor, tirx.Buffer] | None = None,
) -> TensorIntrin:
    """Declare a tensor intrinsic, as TVM's classic ``te.decl_tensor_intrin`` did.

    Parameters
    ----------
    op : te.ComputeOp
        What it computes: one output, inputs from ``te.placeholder`` only.
    fcompute : PrimFunc, tuple of PrimFunc, or callable
        The implementation. A PrimFunc in TVMScript takes the inputs and then the output. A callable
        ``fcompute(ins, outs)`` gets their buffers and returns a statement. A tuple ``(body, reset,
        update)`` of either serves a reduction that goes on outside of the intrinsic.
    name : str
        For messages; intrinsics may share it.
    binds : dict of te.Tensor to Buffer, optional
        Buffers with alignment, strides or memory of their own. A tensor without one takes the
        memory that it has where the intrinsic is used, and any stride between its rows.
    """
    _check_compute(op)
    if not isinstance(binds, Mapping | None):
        raise ScheduleError(f"binds has a buffer for each tensor, as a dictionary, not {binds!r}.")
    tensors = [*op.input_tensors, op.output(0)]
    declared = dict(binds or {})
    build = _from_script(fcompute, len(tensors)) or _from_builder(op, fcompute)
    return TensorIntrin(name, op, build, [declared.get(tensor) for tensor in tensors])


def _check_compute(op: Any) -> None:
    if not isinstance(op, te.ComputeOp) or op.num_outputs != 1:
        raise ScheduleError(
            f"decl_tensor_intrin needs the op of a te.compute with one output, "
            f"not a {type(op).__name__}."
        )
    computed = [t.name for t in op.input_tensors if not isinstance(t.op, te.PlaceholderOp)]
    if computed:
        raise ScheduleError(
            f"An intrinsic reads placeholders only; {op.name} reads the computed "
            f"{', '.join(computed)}."
        )


def _from_script(fcompute: Any, count: int) -> Any:
    """Implementation given as one PrimFunc or three; None if it is given otherwise."""
    given = fcompute if isinstance(fcompute, tuple) else (fcompute,)
    if not any(isinstance(part, tirx.PrimFunc) for part in given):
        return None
    for part in given:
        if part is not None and len(part.params) < 1:
            raise ScheduleError("An implementation in TVMScript needs its buffers as parameters.")
    parts = dict(zip(PARTS, given, strict=False))
    body = parts["body"]
    if body is not None and len(body.params) != count:
        raise ScheduleError(
            f"The implementation has {len(body.params)} parameters and the compute has {count} "
            f"tensors; give the inputs and then the output."
        )
    return lambda part, _buffers: parts.get(part)


def _from_builder(op: te.ComputeOp, fcompute: Any) -> Any:
    """Implementation that a function of the buffers builds."""
    if not callable(fcompute):
        raise ScheduleError(
            f"decl_tensor_intrin needs a PrimFunc or a function of (ins, outs), "
            f"not a {type(fcompute).__name__}."
        )

    def build(part: str, buffers: list[tirx.Buffer]) -> tirx.PrimFunc | None:
        built = fcompute(buffers[:-1], buffers[-1:])
        parts = dict(zip(PARTS, built if isinstance(built, tuple) else (built,), strict=False))
        if parts.get(part) is None:
            return None
        used = buffers[-1:] if part == "reset" else buffers
        stmt = parts[part]
        stmt = stmt if isinstance(stmt, tirx.Stmt) else tirx.Evaluate(stmt)
        return _function(used, _read_by(part, used), stmt)

    return build


def _declare(tensor: te.Tensor, scope: str) -> tirx.Buffer:
    """Buffer of a tensor nobody declared; rows may be padded, so only the last stride is known."""
    free = [tirx.Var(f"{tensor.op.name}_s{dim}", "int32") for dim in range(len(tensor.shape) - 1)]
    return tirx.decl_buffer(
        tensor.shape,
        tensor.dtype,
        tensor.op.name,
        strides=[*free, 1] if free else None,
        scope=scope,
        offset_factor=1,
    )


def _read_by(part: str, buffers: list[tirx.Buffer]) -> list[tirx.Buffer]:
    """Buffers that a part reads, in the order in which TensorIR lists them."""
    return {"body": buffers[:-1], "reset": [], "update": [buffers[-1], *buffers[:-1]]}[part]


def _function(
    buffers: list[tirx.Buffer], reads: list[tirx.Buffer], body: tirx.Stmt
) -> tirx.PrimFunc:
    """Function whose root block declares that it touches its buffers whole."""
    read, written = [whole_region(b) for b in reads], [whole_region(buffers[-1])]
    block = s_tir.SBlock([], read, written, "root", body)
    return tirx.PrimFunc(
        buffers, s_tir.SBlockRealize([], True, block), attrs=tvm.ir.make_node("ir.DictAttrs")
    )


def describe(op: te.ComputeOp, part: str, buffers: list[tirx.Buffer]) -> tirx.PrimFunc:
    """Description of one part of a compute, over the buffers of its implementation."""
    tensors = [*op.input_tensors, op.output(0)]
    if part == "reset":
        zero = op.body[0].combiner.identity_element[0]
        tensors = [te.compute(op.output(0).shape, lambda *_: zero, name=op.name)]
    func = te.create_prim_func(tensors)
    body = substitute(func.body.block.body, dict(zip(func.params, buffers, strict=True)))
    steps = len(op.reduce_axis) > 0 and part != "reset"
    if steps:
        body = tvm_ffi.structural_map(body, [(s_tir.SBlock, _without_init)], order="post")
    reads = _in_read_order(body, buffers)
    return _function(buffers, _read_by("update" if steps else part, reads), body)


def _without_init(block: s_tir.SBlock) -> s_tir.SBlock:
    """The block of one step, which reads what it adds to."""
    whole = [tirx.BufferRegion(w.source, w.region) for w in block.writes]
    return s_tir.SBlock(
        block.iter_vars, [*whole, *block.reads], block.writes, block.name_hint, block.body
    )


def _in_read_order(body: tirx.Stmt, buffers: list[tirx.Buffer]) -> list[tirx.Buffer]:
    """Inputs as the described block lists them, then the output."""
    reads = [region for block in blocks_in(body) for region in block.reads]
    output = buffers[-1]
    return [*(r.source for r in reads if not r.source.same_as(output)), output]


def check_fits(name: str, site: s_tir.SBlock, desc: tirx.PrimFunc) -> None:
    """Refuse loops whose buffers cannot be those of an intrinsic's description."""
    root = desc.body.block
    for verb, mine, wanted in (
        ("write", site.writes, root.writes),
        ("read", site.reads, root.reads),
    ):
        if len(mine) != len(wanted):
            raise ScheduleError(
                f"Intrinsic {name} {verb}s {len(wanted)} buffers and the loops {verb} {len(mine)}."
            )
        for region, other in zip(mine, wanted, strict=True):
            if (here := _shape_of(region)) != (there := _shape_of(other)):
                raise ScheduleError(
                    f"Intrinsic {name} {verb}s {there} and the loops {verb} {here} "
                    f"of {region.source.name}."
                )


def _shape_of(region: Any) -> str:
    """Memory, type and extents of a region, without leading extents of 1."""
    extents = [str(r.extent) for r in region.region]
    while extents and extents[0] == "1":
        extents.pop(0)
    return f"{region.source.scope()} {region.source.dtype}[{', '.join(extents)}]"
