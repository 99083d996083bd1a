"""Attention that PyTorch has taken apart becomes Relax's operator again."""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose, prod
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import PrimType
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_equal

from ...ir.queries import is_number
from ..bindings import Bindings
from ..known_values import array_of, scalar_of
from ..merge_alike import MergeAlike
from ..relax_values import (
    NARROW_FLOATS,
    axes_of,
    bound_to,
    extents_of,
    name_of,
    rewritten,
    source_of,
)
from .band import COPIES, Band
from .gather import has_kernel
from .write_out import safe_softmax, scores_of

#: Types of attention that is written out.
_COMPUTED = ("float32", *NARROW_FLOATS)
#: What changes neither an element nor its place in a matrix of a head.
_VIEWS = ("reshape", "broadcast_to", "astype")
#: What makes the heads of keys and values as many as those of queries.
_REPEATS = ("reshape", "broadcast_to", "expand_dims")
#: What only moves elements: a value that is widened, moved and narrowed is moved as it was.
_MOVES = (*_REPEATS, "permute_dims", "squeeze", "strided_slice", "take")
#: Part by which two roots of a scale in bfloat16 may be off.
_ROUNDED = 2**-7


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.ComposeAttention")
class ComposeAttention:
    """Make ``nn.attention`` of the operators that ``torch.export`` leaves of it.

    ``run_decompositions`` writes ``scaled_dot_product_attention`` as products of scaled Q and K, a
    softmax of which rows without a key are made 0, and a product with V, each over heads in one
    dim. Taken back are such of float16 and bfloat16 for which there is a kernel. A mask that is
    not causal, as one of padding that is given, is added to scores in the operands' type. What is
    cast, moved and cast back, as mixed precision leaves heads, is moved as it was. Others, also of
    float32, become products without their copies, around a softmax of one kernel.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        mod = rewritten(mod, _Compose)
        if not any(_adds_to_scores(func) for func in mod.functions.values()):
            return mod
        # Each layer casts a mask that all of them read. What is merged keeps a second name.
        merged = tvm.transform.Sequential([MergeAlike()])(mod)
        return relax.transform.CanonicalizeBindings()(merged)


def _adds_to_scores(func: Any) -> bool:
    if not isinstance(func, relax.Function) or not isinstance(func.body, relax.SeqExpr):
        return False
    calls = Bindings.of(func).bound.values()
    return any(name_of(one) == "nn.attention_bias" for one in calls)


@mutator
class _Compose(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.known = dict[Any, Any]()

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if name_of(call) == "astype" and self._was(call.args[0], call.ty.dtype):
            return self._cast(call.args[0], call.ty.dtype)
        before: Any = self._call(call.args[0]) if name_of(call) == "reshape" else None
        if name_of(before) == "reshape":
            # Batch and heads become one dim for a product, and two again.
            source = before.args[0]
            return source if structural_equal(extents_of(source), extents_of(call)) else call
        if name_of(call) != "matmul":
            return call
        call = self._narrow(call)
        found = self._attention(call)
        return call if found is None else found

    def _narrow(self, product: relax.Call) -> relax.Call:
        """A product whose operands are cast before they are moved, and not widened for it.

        PyTorch takes ``baddbmm`` of 16 bits apart so, which multiplies the same numbers. Keys that
        are turned in ``float32`` and cast behind it would be stored once more.
        """
        kinds = [*map(PrimType, NARROW_FLOATS)]
        for kind in kinds:
            if all(self._was(one, kind) for one in product.args):
                given = [self._cast(one, kind) for one in product.args]
                return self.builder_.normalize(relax.op.matmul(*given, out_dtype="float32"))
        given = [self._cast_first(one) for one in product.args]
        if all(map(relax.Expr.same_as, given, product.args)):
            return product
        made = relax.Call(product.op, given, product.attrs, product.ty_args)
        return self.builder_.normalize(made)

    def _cast_first(self, value: Any) -> Any:
        """Turned keys of 16 bits, which are moved as such."""
        cast = self._call(self._past(value, ("reshape", "broadcast_to")))
        if name_of(cast) != "astype" or str(cast.ty.dtype) not in NARROW_FLOATS:
            return value
        turned = self._call(self._past(cast.args[0], ("reshape", "broadcast_to")))
        if name_of(turned) != "permute_dims" or str(turned.ty.dtype) != "float32":
            return value
        counts = [prod(extents_of(one) or ()) for one in (value, cast)]
        if not tvm.sym.Analyzer().can_prove_equal(*counts):
            return value  # Elements are repeated in between.
        moved = self._moved(self._call(cast.args[0]), cast.ty.dtype)
        return self.builder_.emit(relax.op.reshape(moved, value.ty.shape))

    def _moved(self, call: relax.Call, dtype: Any) -> Any:
        """A call that moves elements, of elements that are cast before."""
        given = self._call(call.args[0])
        if name_of(given) in (*_REPEATS, "permute_dims"):
            inner = self._moved(given, dtype)
        else:
            inner = self.builder_.emit(relax.op.astype(call.args[0], dtype))
        return self.builder_.emit(
            relax.Call(call.op, [inner, *call.args[1:]], call.attrs, call.ty_args)
        )

    def _attention(self, mean: relax.Call) -> relax.Expr | None:
        """The operator in place of a product of weights and values."""
        given = self._past(mean.args[0], _VIEWS)
        weights = self._weights(given)
        softmax = self._call(weights)
        if name_of(softmax) != "nn.softmax":
            return None
        scores, mask = self._unmasked(softmax.args[0])
        product = self._call(self._past(scores, _VIEWS))
        if name_of(product) != "matmul":
            return None
        (q, q_scale), (k, k_scale) = (self._scaled(one) for one in product.args)
        turned, shape = self._call(k), extents_of(q)
        if name_of(turned) != "permute_dims" or shape is None or len(shape) < 4:
            return None
        *batch, rows, columns = range(len(shape))
        if axes_of(turned) != [*batch, columns, rows]:
            return None
        v = self._split(mean.args[1], shape[:-2])
        if v is None:
            return None
        kind = self._kind(mean.args[0], (q, turned.args[0], v))
        order = self._batch_and_heads(q, batch)
        given_mask = isinstance(mask, relax.Expr)
        bias = self._mask_in_four(mask, order) if given_mask else None
        if given_mask and bias is None:
            return None
        heads = [self._in_four(self._cast(one, kind), order) for one in (q, turned.args[0], v)]
        operands = [relax.op.permute_dims(one, [0, 2, 1, 3]) for one in heads]
        if bias is not None:
            operands.append(self._cast(bias, kind))
        # Square roots of the operator's own scale, rounded to the operands' type.
        scale: float | None = q_scale * k_scale
        if isclose(q_scale * k_scale, int(shape[-1]) ** -0.5, rel_tol=_ROUNDED):
            scale = None

        def made(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
            if isinstance(mask, Band):
                bias = mask.bias(self.builder_.emit, 4, str(kind))
            causal = mask if isinstance(mask, str) else None
            return relax.op.nn.attention(q, k, v, bias, scale, causal)

        if not has_kernel(made, operands):
            # What makes rows without a key 0 is torch's operator.
            is_torchs = weights is not given and str(kind) in _COMPUTED
            added = self._added(softmax.args[0]) if mask is not None else []
            if len(batch) > 2:
                added = [self._mask_in_four(one, order) for one in added]
            if not is_torchs or None in added:
                return None
            found = self._products(heads, q_scale * k_scale, added)
        else:
            whole = self.builder_.emit(made(*(self.builder_.emit(one) for one in operands)))
            found = relax.op.permute_dims(whole, [0, 2, 1, 3])
        found = self._as_was(self.builder_.emit(found), shape, order)
        whole = self.builder_.emit(relax.op.reshape(found, mean.ty.shape))
        return self._cast(whole, mean.ty.dtype)

    def _batch_and_heads(self, q: Any, batch: Sequence[int]) -> list[int]:
        """Dims of a batch, the one that is of heads last: its elements are nearest in memory.

        Windows of an image are a dim of their own in some models, before their heads or behind.
        """
        source = self._call(self._past(q, ("astype", "squeeze", "strided_slice")))
        if len(batch) == 2 or name_of(source) != "permute_dims":
            return [*batch]
        places = axes_of(source)[-len(batch) - 2 :]
        heads = max(batch, key=lambda dim: places[dim])
        return [*(dim for dim in batch if dim != heads), heads]

    def _in_four(self, value: Any, order: Sequence[int]) -> Any:
        """Rows by one dim of a batch, and one of heads."""
        shape = extents_of(value) or ()
        if len(shape) == 4:
            return value
        *others, heads = order
        rows = len(shape) - 2
        value = self.builder_.emit(relax.op.permute_dims(value, [*order, rows, rows + 1]))
        one = [prod(shape[dim] for dim in others), shape[heads], *shape[rows:]]
        return self.builder_.emit(relax.op.reshape(value, one))

    def _as_was(self, value: Any, shape: Sequence[Any], order: Sequence[int]) -> Any:
        """Rows in the dims that they had before :meth:`_in_four`."""
        if len(shape) == 4:
            return value
        rows = len(shape) - 2
        turned = [*order, rows, rows + 1]
        given = [*(shape[dim] for dim in turned[:-1]), (extents_of(value) or ())[-1]]
        value = self.builder_.emit(relax.op.reshape(value, given))
        inverse = [turned.index(dim) for dim in range(len(shape))]
        return self.builder_.emit(relax.op.permute_dims(value, inverse))

    def _products(self, heads: Sequence[Any], scale: float, added: Sequence[Any]) -> relax.Expr:
        """Two products, and between them a softmax of ``float32``, as torch's kernels compute.

        Of 16 bits scores stay as they are added up, and weights are rounded. The decomposition
        widens Q, K and V instead, and tensor cores multiply no ``float32``. And it looks at all
        scores for rows without a key, of which there are none without a mask.
        """
        emit = self.builder_.emit
        scores = scores_of(emit, heads, scale, added)
        weights = safe_softmax(emit, scores) if added else emit(relax.op.nn.softmax(scores))
        weights = self._cast(weights, heads[2].ty.dtype)
        return relax.op.matmul(weights, heads[2], out_dtype="float32")

    def _added(self, scores: Any) -> list[Any]:
        """What is added to scores."""
        return [self._call(self._past(scores, ("astype",))).args[1]]

    def _mask_in_four(self, mask: Any, order: Sequence[int]) -> Any:
        """A mask by batch, head, row and key, of as few elements as it was made of.

        None where it differs along some dims of a batch, and is repeated along others.
        """
        keys, narrow = extents_of(mask), self._past(mask, COPIES)
        while name_of(call := self._call(narrow)) == "where" and self._is_all_true(call.args[0]):
            narrow = self._past(call.args[1], COPIES)
        # The operator repeats numbers along batches, heads and rows, and wants one for each key.
        if structural_equal((extents_of(narrow) or ())[-1:], (keys or ())[-1:]):
            mask = narrow
        shape, rank = extents_of(mask) or (), len(order) + 2
        if len(shape) < rank:
            shape = (*[tirx.IntImm("int64", 1)] * (rank - len(shape)), *shape)
            mask = self.builder_.emit(relax.op.reshape(mask, shape))
        ones = {is_number(shape[dim], 1) for dim in order[:-1]}
        return self._in_four(mask, order) if len(ones) == 1 else None

    def _is_all_true(self, condition: Any) -> bool:
        """Whether a condition holds everywhere, as that of padding does where none is given."""
        copied = self._past(condition, COPIES)
        known = array_of(copied, self.lookup_binding, True, self.known)
        return known is not None and bool(known.all())

    def _cast(self, value: Any, dtype: Any) -> Any:
        """A value of a type; Q and K may have been rotated in float32."""
        if value.ty.dtype == dtype:
            return value
        call = self._call(value)
        was = self._was(value, dtype)
        if was and name_of(call) == "astype":
            return call.args[0]
        if name_of(call) in (_MOVES if was else _REPEATS):
            # What repeats heads is read in place: the narrow ones alone are stored.
            given = [self._cast(call.args[0], dtype), *call.args[1:]]
            return self.builder_.emit(relax.Call(call.op, given, call.attrs, call.ty_args))
        return self.builder_.emit(relax.op.astype(value, dtype))

    def _kind(self, weights: Any, heads: Sequence[Any]) -> Any:
        """The type of weights, or that of Q, K and V where these were widened for the product.

        Of narrow operands ToMixedPrecision writes products in float32, and torch whole attentions.
        """
        if str(weights.ty.dtype) == "float32":
            for kind in map(PrimType, NARROW_FLOATS):
                if all(self._was(one, kind) for one in heads):
                    return kind
        return weights.ty.dtype

    def _was(self, value: Any, dtype: Any) -> bool:
        """Whether a value was of a narrow type before it was widened and moved."""
        if str(value.ty.dtype) != "float32":
            return False  # What was narrowed has been rounded.
        call = self._call(self._past(value, _MOVES))
        return name_of(call) == "astype" and call.args[0].ty.dtype == dtype

    def _call(self, value: Any) -> Any:
        """What a variable is bound to, also by the name of another one."""
        return bound_to(value, self.lookup_binding)

    def _past(self, value: Any, names: tuple[str, ...]) -> Any:
        """What a value is made from by some operators alone."""
        return source_of(value, names, self._call)

    def _split(self, value: Any, heads: tuple[Any, ...]) -> Any:
        """A value before its batch and heads became one dim, or None."""
        while (dims := extents_of(value)) is not None and not structural_equal(dims[:-2], heads):
            if name_of(call := self._call(value)) not in _VIEWS:
                return None
            value = call.args[0]
        copied = self._call(value)
        # A copy of the same shape would be stored.
        if name_of(copied) == "broadcast_to":
            value = copied.args[0] if structural_equal(extents_of(copied.args[0]), dims) else value
        return None if dims is None else value

    def _weights(self, value: Any) -> Any:
        """A softmax, also where rows of which all is masked are made 0."""
        call = self._call(value)
        if name_of(call) != "where" or name_of(self._call(call.args[1])) != "full_like":
            return value
        masked = self._past(call.args[0], ("logical_not", "astype", "max"))
        return call.args[2] if name_of(self._call(masked)) == "equal" else value

    def _unmasked(self, value: Any) -> tuple[Any, Any]:
        """Scores before a mask, and which it is: none, a causal one's name, a band or a tensor."""
        value = self._past(value, ("astype",))
        call = self._call(value)
        if name_of(call) != "add":
            return value, None
        scores, added = call.args
        mask = array_of(added, self.lookup_binding, True, self.known)
        if mask is not None and not mask.any():
            return scores, None
        if mask is None:
            band = Band.of_places(added, scores, self.lookup_binding)
        else:
            band = Band.of(mask, scores)
        return scores, added if band is None else band.named()

    def _scaled(self, value: Any) -> tuple[Any, float]:
        """A value and the number by which it was multiplied."""
        value = self._past(value, _VIEWS)
        call = self._call(value)
        if name_of(call) == "multiply":
            factor = scalar_of(call.args[1], self.lookup_binding)
            if factor is not None:
                return call.args[0], factor
        return value, 1.0
