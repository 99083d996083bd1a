"""Products, the softmax between them, and what only moves their operands become one function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from ...analysis.attention import read_attention
from ...errors import ScheduleError
from ...gpu.hardware import architecture
from ...ir.rebuild import stripped
from ...ir.replace_calls import Make, with_calls_replaced
from ...target import has_warpgroups_around
from ...transform.attention.fit import fit_attention
from ..bindings import Bindings
from ..known_values import scalar_of
from ..moves.fills import FILLS
from ..moves.scatters import scatters_as_sums
from ..relax_values import ELEMENTWISE, dims_of, extents_of, name_of

_log = logging.getLogger("tvm_layout_ext")
#: What moves elements, so that the kernel reads them in place.
_MOVES = (
    *("permute_dims", "reshape", "strided_slice", "repeat", "expand_dims", "squeeze"),
    "broadcast_to",
)
#: What makes tensors of nothing, and is folded into conditions.
_MADE = ("full", "zeros", "ones", "arange", "triu", "tril", "broadcast_to", "add")
#: What may stand between scores and weights.
_BETWEEN = (*ELEMENTWISE, "triu", "tril", "reshape", "nn.softmax", "max", "sum")
#: What makes a large tensor of small ones, and how many times larger it is to be.
_SPREAD, _LEAST_SPREAD = (*_MOVES, "add", "nn.pad"), 2
#: Relax's operators of attention: Q, K and V as batch, place, head and element.
OPERATORS = ("nn.attention", "nn.attention_bias")
#: An annotation of TVM that names a buffer of nobody: no two functions with it are equal, and each
#: layer of a model would be compiled.
_FREE = "layout_free_placeholders"
#: What may follow the second product, if nobody else reads it.
_BEHIND = ("astype", "permute_dims")


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.GatherAttention")
class GatherAttention:
    """Call one function for each attention of which there is a kernel on the target.

    It has both products, what is between them, permutations, slices and repetitions of Q, K and V,
    and casts and permutations of the result. Where there is no kernel the operators stay, and a
    sentence is logged. What is added to a part of the scores in place is added to all of them,
    with zeros, if that makes more attentions of a module (:func:`.scatters_as_sums`); if it is a
    sum of smaller tensors, as a term for each row of an image and one for each column, it is added
    up in the kernel.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        if not has_warpgroups_around():
            return mod
        found, summed = _found(mod), scatters_as_sums(mod)
        if not summed.same_as(mod):
            more = _found(summed)
            if sum(map(len, more.values())) > sum(map(len, found.values())):
                mod, found = summed, more
        return with_calls_replaced(mod, found) if any(found.values()) else mod


def _found(mod: tvm.IRModule) -> dict[Any, list[tuple[relax.Call, Make]]]:
    """Of each Relax function the calls that end an attention, and what is made of them."""
    return {
        gv: [made for ways in _groups(func) if (made := _first_made(ways)) is not None]
        for gv, func in mod.functions_items()
        if isinstance(func, relax.Function)
    }


@dataclass
class _Group:
    """Bindings that are an attention, in order, and the variable of its result.

    ``numbers`` are variables that hold a known number, with their constants.
    """

    bindings: list[tuple[Any, Any]]
    result: Any
    inputs: list[Any] = field(default_factory=list)
    numbers: list[tuple[Any, Any]] = field(default_factory=list)

    def function(self) -> relax.Function:
        """The bindings as one function of Relax."""
        builder = relax.BlockBuilder()
        params = [relax.Var(f"in_{i}", one.ty) for i, one in enumerate(self.inputs)]
        values = [*self.numbers, *zip(self.inputs, params, strict=True)]
        with builder.function("attention", params, {"Primitive": 1}, private=True):
            with builder.dataflow():
                for var, call in self.bindings:
                    given = [_replaced(one, values) for one in call.args]
                    if name_of(call) in OPERATORS:
                        _check_sizes(call)
                    if name_of(call) == "where":
                        given = [_written_out(one) for one in given]
                    again = relax.Call(call.op, given, call.attrs, call.ty_args)
                    values.append((var, builder.emit(again)))
                out = builder.emit_output(values[-1][1])
            builder.emit_func_output(out)
        (func,) = builder.get().functions.values()
        return func


def _lowered(attention: relax.Function) -> tirx.PrimFunc:
    """The function in TIR."""
    builder = relax.BlockBuilder()
    gv = builder.add_func(attention, "attention")
    outer = [relax.Var(one.name, one.ty) for one in attention.params]
    with builder.function("main", outer):
        builder.emit_func_output(builder.emit(relax.Call(gv, outer)))
    with _quiet(logging.getLogger("topi")):
        mod = relax.transform.FuseTIR()(relax.transform.LegalizeOps(FILLS)(builder.get()))
    (func,) = (one for one in mod.functions.values() if isinstance(one, tirx.PrimFunc))
    return func.with_body(stripped(func.body, _FREE))


def _check_sizes(call: relax.Call) -> None:
    """Refuse sizes of Relax's operators that are expressions: TVM takes equal ones for others."""
    for extent in (extent for one in call.args for extent in extents_of(one) or ()):
        if not isinstance(extent, tirx.IntImm | tirx.Var):
            raise ScheduleError(f"It has {extent} places; a number or a variable can be read.")


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Without warnings of products of two types, which a kernel of attention may have."""
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def _replaced(value: Any, values: list[tuple[Any, Any]]) -> Any:
    return next((new for old, new in reversed(values) if old.same_as(value)), value)


def _makes(call: Any) -> bool:
    return name_of(call) in _MADE


def _written_out(value: Any) -> Any:
    """A number without dims as an operator: TVM leaves constants of ``where`` as they are."""
    if isinstance(value, tvm.ir.Constant) and getattr(value.ty, "ndim", None) == 0:
        return relax.op.full((), value)
    return value


class _Bindings(Bindings):
    def scores(self, var: Any, path: set[Any]) -> set[Any]:
        """Products that a value is computed from; adds what is between to ``path``."""
        call = self.call(var)
        if name_of(call) == "matmul":
            return {var}
        if name_of(call) not in _BETWEEN:
            return set()
        found = set().union(*(self.scores(one, path) for one in call.args))
        if found:
            path.add(var)
        return found

    def before(self, var: Any, takes: Callable[[Any], bool]) -> Iterator[Any]:
        """A value and what it is made from, as far as calls are taken."""
        call = self.call(var)
        if takes(call):
            yield var
            for one in call.args:
                yield from self.before(one, takes)

    def moves(self, call: Any) -> bool:
        """Whether a call moves elements, or multiplies them by a number or divides them by one."""
        if name_of(call) in ("multiply", "divide"):
            return scalar_of(call.args[1], self.call) is not None
        return name_of(call) in _MOVES

    def is_made(self, var: Any) -> bool:
        """Whether a value depends on no input."""
        call = self.call(var)
        if call is None:
            return not isinstance(var, relax.Var)
        return name_of(call) in _MADE and all(self.is_made(one) for one in call.args)


def _groups(func: relax.Function) -> Iterator[Iterator[_Group]]:
    """The attentions of a function, each by several groups, the largest first."""
    if not isinstance(func.body, relax.SeqExpr):
        return
    reader = _Bindings.of(func)
    for var in reader.order:
        name = name_of(reader.bound[var])
        if name in OPERATORS:
            yield _around(reader, _with_made(reader, {var}), var, reader.bound[var].args[:3])
        elif name == "matmul":
            yield _group(reader, var)


def _group(reader: _Bindings, mean: Any) -> Iterator[_Group]:
    """The attention whose second product this is."""
    weights, values = reader.bound[mean].args
    path: set[Any] = set()
    scores = reader.scores(weights, path)
    names = {name_of(reader.bound[one]) for one in path}
    if len(scores) != 1 or not names & {"nn.softmax", "exp"}:
        return
    (product,) = scores
    inside = {*path, product, mean}
    if any(user not in inside for one in (*path, product) for user in reader.users[one]):
        return
    inside = _with_made(reader, inside)
    for var in path:
        if name_of(reader.bound[var]) == "add":
            inside.update(
                *(_small_parts(reader, one) for one in {*reader.bound[var].args} - inside)
            )
    yield from _around(reader, inside, mean, [*reader.bound[product].args, values])


def _small_parts(reader: _Bindings, added: Any) -> list[Any]:
    """What makes a tensor, that is added to scores, of sums of smaller ones with zeros around.

    As MViT's positions, of which each has a term for its row, its column and its time, and the
    first token none. Filled up its rows begin at no 16 bytes, so that TMA could not copy it.
    """
    made = list(reader.before(added, _spreads))
    if not {name_of(reader.bound[one]) for one in made} >= {"add", "nn.pad"}:
        return []
    given = {one for each in made for one in reader.bound[each].args if one not in made}
    sizes = [dims_of(one) for one in (added, *given) if isinstance(one.ty, relax.TensorType)]
    if None in sizes:
        return []
    whole, *parts = (prod(one or ()) for one in sizes)
    return made if _LEAST_SPREAD * sum(parts) <= whole else []


def _spreads(call: Any) -> bool:
    return name_of(call) in _SPREAD


def _with_made(reader: _Bindings, inside: set[Any]) -> set[Any]:
    """Variables, and those of their operands that depend on no input."""
    sides = [side for one in inside for side in reader.bound[one].args if side not in inside]
    made = [side for side in sides if reader.is_made(side)]
    return inside.union(*(reader.before(side, _makes) for side in made))


def _around(
    reader: _Bindings, inside: set[Any], mean: Any, operands: Sequence[Any]
) -> Iterator[_Group]:
    """The attention with what moves its operands, and what follows its result.

    And without the first moves, as those of windows of an image, whose rows TMA may not copy: then
    these are stored.
    """
    moves = {one for side in operands for one in reader.before(side, reader.moves)}
    last = mean
    while len(after := reader.users.get(last, [])) == 1:
        if name_of(reader.call(after[0])) not in _BEHIND:
            break
        last = after[0]
        inside.add(last)
    later = {one for one in moves if moves.intersection(reader.bound[one].args)}
    for taken in (moves, later) if moves else (moves,):
        found = _grouped(reader, inside | taken, last)
        if found is not None:
            yield found


def _grouped(reader: _Bindings, inside: set[Any], last: Any) -> _Group | None:
    """Bindings as a group, whose inputs and numbers are found."""
    # A reshape of what is in memory costs nothing, and hides dims: in one of rows of all batches
    # nobody sees where the keys of a batch end.
    for var in reader.order:
        call = reader.bound[var]
        if var in inside and name_of(call) == "reshape" and call.args[0] not in inside:
            inside.remove(var)
    bindings = [(var, reader.bound[var]) for var in reader.order if var in inside]
    inputs, numbers = list[Any](), list[tuple[Any, Any]]()
    for _, call in bindings:
        for one in call.args:
            number = scalar_of(one, reader.call) if isinstance(one, relax.Var) else None
            if number is not None and one not in inside:
                numbers.append((one, relax.const(number, str(one.ty.dtype))))
                continue
            given = one not in inside if isinstance(one, relax.Var) else _is_tensor(one)
            if given and not any(one.same_as(other) for other in inputs):
                inputs.append(one)
    if any(extents_of(one) is None for one in (*inputs, *inside)):
        return None
    return _Group(bindings, last, inputs, numbers)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tvm.ir.Constant) and getattr(value.ty, "ndim", 0) > 0


def has_kernel(operator: Callable[..., relax.Expr], operands: Sequence[relax.Expr]) -> bool:
    """Whether an operator of Relax is an attention that has a kernel.

    Relax's own takes no operands that differ by broadcasting.
    """
    builder = relax.BlockBuilder()
    params = [builder.normalize(one).ty for one in operands]
    given = [relax.Var(f"in_{i}", kind) for i, kind in enumerate(params)]
    try:
        with builder.function("main", given):
            with builder.dataflow():
                out = builder.emit_output(operator(*given))
            builder.emit_func_output(out)
    except ValueError:
        return False
    return any(_first_made(ways) is not None for ways in _groups(builder.get()["main"]))


def _first_made(ways: Iterator[_Group]) -> tuple[relax.Call, Make] | None:
    """What the first group becomes that has a kernel; None, and the reason is logged, if none."""
    reasons = []
    for group in ways:
        try:
            return _made(group)
        except ScheduleError as refused:
            reasons.append(refused)
    if reasons:
        _log.info("Attention stays products and a softmax: %s", reasons[0])
    return None


def _made(group: _Group) -> tuple[relax.Call, Make]:
    """The call that ends a group, and what calls its kernel in that place."""
    func = _with_kernel(tvm_ffi.StructuralKey(group.function()))
    return group.bindings[-1][1], partial(_called, group, func)


@lru_cache(maxsize=64)
def _with_kernel(attention: tvm_ffi.StructuralKey) -> tirx.PrimFunc:
    """An attention in TIR, once for all layers that are alike; ScheduleError without a kernel."""
    func = _lowered(attention.key)
    if loose := [str(one) for one in func.params if not hasattr(one, "shape")]:
        raise ScheduleError(f"No tensor of it says what {', '.join(loose)} is.")
    fit_attention(read_attention(func), architecture("sm_90a"))
    return func


def _called(group: _Group, func: tirx.PrimFunc, inside: Any) -> relax.Expr:
    """A call of the function, in the type of the group's result."""
    given = [inside.visit_expr(one) for one in group.inputs]
    gv = inside.builder_.add_func(func, "attention")
    kind, made = group.result.ty, str(func.params[-1].dtype)
    # TVM lowers the operator with a scale of its own to one of float32.
    out = relax.call_tir(gv, relax.Tuple(given), relax.TensorType(kind.shape, made))
    if made == str(kind.dtype):
        return out
    return relax.op.astype(inside.builder_.emit(out), kind.dtype)
