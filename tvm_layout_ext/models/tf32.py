"""Products of ``float32`` that may be rounded to tf32, as torch's ``allow_tf32`` has it."""

from __future__ import annotations

from collections.abc import Iterable
from math import log
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx
from tvm.ir import _ffi_api
from tvm.s_tir import SBlock
from tvm.target import Target

from ..gpu.tf32 import KEPT_BITS
from ..intrin.instructions import instruction
from ..ir.annotations import ALLOW_TF32, INPUT_PRECISION, TF32
from ..ir.queries import is_number, loads_in
from ..ir.rebuild import block_with
from ..target import capability
from ..tune.space.off_tensor_cores import is_product
from .relax_values import FLOATS, NARROW_FLOATS, ROUNDED, name_of

#: Operator of Relax, TVM's name and ours, that rounds ``float32`` to numbers that tf32 has.
TO_TF32 = f"relax.{ROUNDED}"
#: What makes a number larger by 0.35 to 0.69 of the last bit that tf32 has, as its mantissa is 1 to
#: 2: by half of it in the mean of mantissas whose logarithms are spread evenly, as of products.
_LARGER = 1 + 0.5 * log(2) * 2.0**-10
#: What torch has a switch for, each, and the operators that it is of.
MATMUL, CONV = "matmul", "conv"
KINDS = (MATMUL, CONV)
OPERATORS = {
    MATMUL: ("relax.matmul",),
    CONV: tuple(f"relax.nn.conv{rank}d" for rank in (1, 2, 3)),
}


def allow_tf32(mod: tvm.IRModule, kinds: Iterable[str]) -> tvm.IRModule:
    """Let products of these kinds be rounded to tf32 when a pipeline lowers a module."""
    return mod.with_attr(ALLOW_TF32, sorted(kinds))


def allowed(mod: tvm.IRModule, target: Target) -> frozenset[str]:
    """The kinds of products that :func:`allow_tf32` allows, and that a GPU has."""
    found = None if mod.attrs is None else mod.attrs.get(ALLOW_TF32)
    return frozenset(map(str, found or () if has_tf32(target) else ()))


def has_tf32(target: Target) -> bool:
    """Whether tensor cores of a GPU multiply tf32."""
    return capability(target) >= instruction("mma.m16n8k8.f32.tf32").capability


def types_of(kind: str, tf32: Iterable[str]) -> tuple[str, ...]:
    """Types of which tensor cores multiply products of a kind, where ``tf32`` are allowed kinds."""
    return FLOATS if kind in tf32 else NARROW_FLOATS


def lower_rounded(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Lower a product as TVM does, of ``float32`` to one that may be rounded."""
    made = call.op.get_attr("FLegalize")(builder, call)
    if name_of(made) != "call_tir":  # TVM knows no function for it.
        return made
    function, *given = made.args
    marked = builder.add_func(rounded(builder.get()[function]), function.name_hint)
    return relax.Call(made.op, [marked, *given], made.attrs, made.ty_args)


def rounded(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Say of the blocks that multiply ``float32`` that they may round.

    Of one term, as angles of a rotary embedding are, nothing is added up, and nothing is rounded.
    """
    return func.with_body(tvm_ffi.structural_map(func.body, [(SBlock, _marked)], order="post"))


def _marked(block: SBlock) -> SBlock:
    if not isinstance(block.body, tirx.BufferStore) or not is_product(block):
        return block
    summed = (one for one in block.iter_vars if one.iter_type == tirx.IterVar.CommReduce)
    buffers = (block.body.buffer, *(one.source for one in loads_in(block.body.value)))
    if all(is_number(one.dom.extent, 1) for one in summed):
        return block
    if {str(one.dtype) for one in buffers} != {"float32"}:
        return block
    return block_with(block, annotations={**block.annotations, INPUT_PRECISION: TF32})


def to_tf32(value: Any) -> relax.Call:
    """A call that rounds each element of a value to a neighbour that tf32 has, itself if it has it.

    By two instructions: a number is made larger by half of the last bit, more or less, and cut off.
    It is off by 0.69 of that bit at most, and by 0 in the mean; the nearest, by ``cvt.rna.tf32`` or
    by integers that leave NaN as it is, would be off by 0.5, and take three times as long.
    """
    return relax.Call(tvm.ir.Op.get(TO_TF32), [value])


def _lower_rounding(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    def to_tf32(x: te.Tensor) -> te.Tensor:
        def rounded(*at: Any) -> Any:
            larger = x(*at) * tirx.const(_LARGER, "float32")
            bits = tirx.reinterpret("uint32", larger) & tirx.const(KEPT_BITS, "uint32")
            return tirx.reinterpret("float32", bits)

        return te.compute(x.shape, rounded, name="to_tf32")

    return builder.call_te(to_tf32, call.args[0], primfunc_name_hint="to_tf32")


def _register() -> None:
    """Make the operator known to TVM, as its own are."""
    _ffi_api.RegisterOp(TO_TF32, "Round float32 to numbers that tf32 has.")
    op = tvm.ir.Op.get(TO_TF32)
    op.set_num_inputs(1)
    op.add_argument("x", "Tensor", "What is rounded.")
    op.set_attr("FInferType", lambda call, _builder: call.args[0].ty)
    op.set_attr("FPurity", True)
    op.set_attr("FLegalize", _lower_rounding)


_register()
