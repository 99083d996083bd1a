"""Read attention: two products, and between them a softmax of what the first one gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx

from ..errors import ScheduleError
from ..ir import ops
from ..ir.conditions import choice_parts, is_zero
from ..ir.queries import (
    ARITHMETIC,
    COMPARISONS,
    is_among,
    is_call_of,
    loads_in,
    nodes_in,
    size_of,
    substitute,
    uses,
)
from ..ir.tidy import under_guards
from ..ir.walk import top_statements
from .contraction import term_of
from .quotients import simplified

#: What is not above it is taken for "hidden" where a program selects it in place of a score.
_HIDDEN = -1e4
#: The lowest number of ``float16``.
_LOWEST = -65504.0
LOG2_E = 1.4426950408889634
_REDUCED = tirx.IterVar.CommReduce


@dataclass(frozen=True)
class Curve:
    """What becomes of each score by itself, as a cap: ``value`` of ``score``, in ``float32``.

    It may read inputs, by row, key and batch.
    """

    score: Any
    value: Any

    def of(self, score: Any) -> Any:
        """The value of another score."""
        return substitute(self.value, {self.score: score})


@dataclass(frozen=True)
class Scores:
    """The exponent, a power of two, of a key's weight: ``scale * curve(score) + bias``.

    ``curve`` is None where it leaves scores as they are. ``bias`` is None, or an expression of
    ``row`` and ``key``. Where one of ``visible`` does not hold, the weight is zero. ``sink`` is
    None, or the exponent of what a row's sum has beside its keys, an expression of ``row``.
    """

    scale: float
    bias: Any = None
    visible: tuple[Any, ...] = ()
    curve: Curve | None = None
    sink: Any = None

    def times(self, factor: float) -> Scores:
        """The same of a score that is multiplied before, or of a base that is a power of two."""
        bias = None if self.bias is None else self.bias * tirx.const(factor, "float32")
        return replace(self, scale=self.scale * factor, bias=bias)

    def of(self, factor: float) -> Scores:
        """The same of a score that is by so much smaller."""
        if self.curve is None:
            return replace(self, scale=self.scale * factor)
        if factor == 1:
            return self
        value = self.curve.of(self.curve.score * tirx.const(factor, "float32"))
        return replace(self, curve=Curve(self.curve.score, value))

    def at(self, values: dict[Any, Any], analyzer: Any) -> Scores:
        """The same at other values of variables."""
        bias, sink = (
            None if one is None else substitute(one, values) for one in (self.bias, self.sink)
        )
        curve = self.curve and Curve(self.curve.score, substitute(self.curve.value, values))
        visible = tuple(analyzer.simplify(substitute(one, values)) for one in self.visible)
        return Scores(self.scale, bias, visible, curve, sink)


@dataclass(frozen=True)
class Attention:
    """Means of rows of V, weighted by what Q and K have in common.

    Attributes
    ----------
    name : str
        Of the second product.
    batch : tuple
        Pairs of a variable and its extent, a number or symbolic: by these, ``row`` and ``column``
        the result is stored.
    row, key, depth, column : Var
        Rows of Q and of the result; rows of K and V; what is summed up for a score; columns of V.
    sizes : tuple
        Of these four; the numbers of rows and keys may be symbolic.
    q, k, v : TensorLoad
        An element of an input, by these variables.
    scores : Scores
    total : Var
        Stands for a weighted mean in ``store``, which writes the result.
    store : BufferStore
    places : tuple of int
        Statements of the function that are parts of it; the last one writes the result.
    """

    name: str
    batch: tuple[tuple[Any, Any], ...]
    row: Any
    key: Any
    depth: Any
    column: Any
    sizes: tuple[Any, Any, int, int]
    q: Any
    k: Any
    v: Any
    scores: Scores
    total: Any
    store: Any
    places: tuple[int, ...]


def read_attention(func: tirx.PrimFunc, name: str | None = None) -> Attention:
    """Read the attention of a function; ``name`` is that of its second product, or the last one.

    Copies, permutations and casts before and behind it are parts of it.

    Raises ScheduleError if it is none; the sentence says what it has in the place of what it should
    have.
    """
    return _AttentionReader(func, name).read()


def _with_heads_as_rows(one: Attention) -> Attention:
    """The same attention of single rows, of which those that share K and V are rows of one."""
    for at, (head, count) in enumerate(one.batch):
        for shared in range(count if isinstance(count, int) else 1, 1, -1):
            if count % shared:
                continue
            group, row = (tirx.Var(name, head.ty.dtype) for name in ("group", "row"))
            analyzer = sym.Analyzer()
            analyzer.bind(row, tvm.ir.Range(0, shared))
            analyzer.bind(group, tvm.ir.Range(0, count // shared))
            values = {head: group * shared + row, one.row: tirx.const(0, one.row.ty.dtype)}
            q, k, v = (_indexed(load, values, analyzer) for load in (one.q, one.k, one.v))
            if uses(k, row) or uses(v, row) or not uses(q, row):
                continue
            return replace(
                one,
                batch=(*one.batch[:at], (group, count // shared), *one.batch[at + 1 :]),
                row=row,
                sizes=(shared, *one.sizes[1:]),
                q=q,
                k=k,
                v=v,
                scores=one.scores.at(values, analyzer),
                store=substitute(one.store, values),
            )
    return one


def _indexed(load: Any, values: dict[Any, Any], analyzer: Any) -> Any:
    """A load at other values of variables."""
    indices = [analyzer.simplify(substitute(at, values)) for at in load.indices]
    return tirx.BufferLoad(load.source, indices)


def has_attention(func: tirx.PrimFunc) -> bool:
    """Whether a function has two products and an exponential between them."""
    blocks = [block for _, block in _blocks(func)]
    products = [i for i, block in enumerate(blocks) if _factors(block)]
    if len(products) < 2:
        return False
    between = blocks[products[0] : products[-1]]
    return any(_has_exponential(block.body) for block in between)


def _has_exponential(part: Any) -> bool:
    return any(is_call_of(call, ops.EXP, ops.EXP2) for call in nodes_in(part, tvm.ir.Call))


def _blocks(func: tirx.PrimFunc) -> Iterator[tuple[int, Any]]:
    """Blocks of one store each, alone in plain loops, with their statement's place."""
    for place, stmt in enumerate(top_statements(func)):
        while isinstance(stmt, tirx.For) and stmt.thread_binding is None:
            stmt = stmt.body
        if isinstance(stmt, s_tir.SBlockRealize) and isinstance(stmt.block.body, tirx.BufferStore):
            yield place, stmt.block


def _summed(block: Any) -> list[Any]:
    return [one for one in block.iter_vars if one.iter_type == _REDUCED]


def _factors(block: Any) -> tuple[Any, Any] | None:
    """Both factors of a product, or None."""
    term = term_of(block, tirx.Add)
    if not isinstance(term, tirx.Mul) or not is_zero(block.init.value):
        return None
    return term.a, term.b


def _plain(value: Any) -> Any:
    """A value without casts around it."""
    while isinstance(value, tirx.Cast):
        value = value.value
    return value


def _number(value: Any) -> float | None:
    """A number, also as a cast or a square root of one."""
    value = _plain(value)
    if isinstance(value, tirx.FloatImm | tirx.IntImm):
        return float(value.value)
    if is_call_of(value, ops.SQRT) and (inner := _number(value.args[0])) is not None:
        return float(inner**0.5)
    return None


def _with_row(load: Any, row: Any) -> Any:
    """A load of the only row of a buffer, or of one that is known, by the row's iterator."""
    indices = list(load.indices)
    for i, extent in reversed(list(enumerate(load.source.shape))):
        if size_of(extent) == 1:
            indices[i] = row
            return tirx.BufferLoad(load.source, indices)
    # As the token of a classifier among those of an image. Of a single row all are at its place.
    known = [i for i, at in enumerate(indices) if isinstance(at, tirx.IntImm)]
    if known:
        indices[known[0]] = indices[known[0]] + row
    return tirx.BufferLoad(load.source, indices)


def _scaled(value: Any) -> tuple[Any, float]:
    """A value without constant factors and casts around it, and their product."""
    value = _plain(value)
    if isinstance(value, tirx.Mul):
        for one, other in ((value.a, value.b), (value.b, value.a)):
            if (factor := _number(other)) is not None:
                inner, more = _scaled(one)
                return inner, factor * more
    if isinstance(value, tirx.Div) and (factor := _number(value.b)):
        inner, more = _scaled(value.a)
        return inner, more / factor
    return value, 1.0


def _is_float(value: Any) -> bool:
    return "float" in str(value.ty.dtype)


def _wide(value: Any, given: Any = None, score: Any = None) -> Any:
    """An expression of floats in ``float32``, by a variable in the place of a load.

    Each step of 16 bits would round.
    """
    if isinstance(value, tirx.Cast) and _is_float(value.value):
        return _wide(value.value, given, score)
    if isinstance(value, tirx.FloatImm):
        return tirx.const(float(value.value), "float32")
    if isinstance(value, ARITHMETIC):
        return type(value)(*(_wide(one, given, score) for one in (value.a, value.b)))
    if isinstance(value, tvm.ir.Call) and all(map(_is_float, value.args)):
        inner = [_wide(one, given, score) for one in value.args]
        return tirx.call_intrin("float32", value.op.name, *inner)
    if given is not None and tvm_ffi.structural_equal(value, given):
        return score
    reads = given is not None and any(
        tvm_ffi.structural_equal(one, given) for one in loads_in(value)
    )
    if isinstance(value, tvm.ir.TensorLoad | tirx.Cast) and not reads:
        return value.astype("float32")
    raise ScheduleError(f"A score is made by {value}, which is no function of floats.")


@dataclass
class _AttentionReader:
    func: Any
    name: str | None
    used: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.blocks = list(_blocks(self.func))
        self.analyzer = sym.Analyzer()

    def read(self) -> Attention:
        mean = self._last_product()
        last = self._last_block(mean)
        value = self._resolved(last.body.value) if last is not mean else None
        self._know(last)
        at = self._indices(mean, value)
        values = dict(zip(mean.body.indices, at, strict=True))
        key = self._only(_summed(mean), mean, "summed")
        self.analyzer.bind(key.var, key.dom)
        weights, v, row, column = self._sides(mean, values, last)
        scores, load = self._softmax(weights, key)
        product = self._made_by(load, "a score")
        q, k, depth, factor = self._operands(product, load, (row, key.var))
        total = tirx.Var("total", "float32")
        store = self._store(last, mean, value, total)
        spatial = [one for one in last.iter_vars if one.iter_type != _REDUCED]
        batch = [(i.var, size_of(i.dom.extent.astype("int32"))) for i in spatial]
        sizes = [n for var in (row, column) for other, n in batch if other.same_as(var)]
        deep, wide = self._numbers((depth.var, depth.dom.extent), (column, sizes[1]))
        found = Attention(
            str(mean.name_hint),
            tuple((var, n) for var, n in batch if not is_among(var, (row, column))),
            row,
            key.var,
            depth.var,
            column,
            (sizes[0], size_of(key.dom.extent.astype("int32")), deep, wide),
            q,
            k,
            v,
            scores.of(factor),
            total,
            store,
            self._places(last),
        )
        return _with_heads_as_rows(found) if size_of(sizes[0]) == 1 else found

    def _numbers(self, *sizes: tuple[Any, Any]) -> list[int]:
        found = []
        for var, size in sizes:
            number = size_of(size)
            if not isinstance(number, int):
                raise ScheduleError(
                    f"{var.name} of attention has {size} iterations; only batch, rows and "
                    "keys may have any number, columns are known."
                )
            found.append(number)
        return found

    # The statements that are parts.

    def _last_product(self) -> Any:
        found = [(place, block) for place, block in self.blocks if _factors(block)]
        if self.name is not None:
            found = [one for one in found if str(one[1].name_hint) == self.name]
        if not found:
            what = "No block" if self.name is None else f"Block {self.name} is none that"
            raise ScheduleError(f"{what} multiplies two buffers, as attention does at its end.")
        self.used.add(found[-1][0])
        return found[-1][1]

    def _last_block(self, mean: Any) -> Any:
        """The last of the blocks that copy, cast or reshape what a block gives, each once."""
        block = mean
        params = [p for p in self.func.params if hasattr(p, "shape")]
        while not is_among(block.body.buffer, params):
            own = block.body.buffer
            readers = [
                (place, one)
                for place, one in self.blocks
                if one is not block and any(load.source.same_as(own) for load in loads_in(one.body))
            ]
            if len(readers) != 1 or _summed(readers[0][1]):
                break
            counts = [prod(b.body.buffer.shape) for b in (block, readers[0][1])]
            if not self.analyzer.can_prove_equal(*counts):
                break
            self.used.add(readers[0][0])
            block = readers[0][1]
        return block

    def _places(self, last: Any) -> tuple[int, ...]:
        """Places of all parts, of which nobody else may read what they compute on their way."""
        mine = [(place, block) for place, block in self.blocks if place in self.used]
        others = [
            stmt for place, stmt in enumerate(top_statements(self.func)) if place not in self.used
        ]
        params = [p for p in self.func.params if hasattr(p, "shape")]
        for _, block in mine:
            buffer = block.body.buffer
            read = any(load.source.same_as(buffer) for stmt in others for load in loads_in(stmt))
            if block is not last and (read or is_among(buffer, params)):
                raise ScheduleError(
                    f"Buffer {buffer.name} is read by others, too; what attention computes on its "
                    "way is not kept."
                )
        end = next(place for place, block in mine if block is last)
        return (*sorted(self.used - {end}), end)

    def _made_by(self, load: Any, what: str) -> Any:
        for place, block in self.blocks:
            if isinstance(load, tvm.ir.TensorLoad) and block.body.buffer.same_as(load.source):
                self.used.add(place)
                return block
        raise ScheduleError(f"Attention has {load} in the place of {what}.")

    # Expressions.

    def _know(self, block: Any) -> None:
        for one in block.iter_vars:
            self.analyzer.bind(one.var, one.dom)

    def _values_at(self, block: Any, indices: Any) -> dict[Any, Any]:
        """Values of a block's iterators where it writes an element."""
        values = {one.var: tirx.const(0, one.var.ty.dtype) for one in block.iter_vars}
        for at, index in zip(block.body.indices, indices, strict=True):
            if isinstance(at, tirx.Var):
                values[at] = index
        return values

    def _resolved(self, expr: Any) -> Any:
        """An expression of inputs and sums: what is computed element by element is written out."""

        def load(one: Any) -> Any:
            for place, block in self.blocks:
                if block.body.buffer.same_as(one.source) and not _summed(block):
                    self.used.add(place)
                    values = self._values_at(block, one.indices)
                    return self._resolved(substitute(block.body.value, values))
            return one

        return tvm_ffi.structural_map(expr, [(tvm.ir.TensorLoad, load)], order="post")

    def _simplified(self, expr: Any) -> Any:
        """The same with indices, and conditions on them, in few words."""

        def load(one: Any) -> Any:
            indices = [simplified(at, self.analyzer) for at in one.indices]
            return tirx.BufferLoad(one.source, indices)

        def compared(one: Any) -> Any:
            if not str(one.a.ty.dtype).startswith("int") or loads_in(one):
                return one
            return type(one)(*(simplified(side, self.analyzer) for side in (one.a, one.b)))

        rules = [(tvm.ir.TensorLoad, load), *((kind, compared) for kind in COMPARISONS)]
        return tvm_ffi.structural_map(expr, rules, order="post")

    def _indices(self, mean: Any, value: Any) -> list[Any]:
        """Which element of the second product the last block has, by its own iterators."""
        if value is None:
            return list(mean.body.indices)
        loads = [one for one in loads_in(value) if one.source.same_as(mean.body.buffer)]
        return [simplified(at, self.analyzer) for at in loads[0].indices]

    def _only(self, axes: list[Any], block: Any, what: str) -> Any:
        long = [one for one in axes if size_of(one.dom.extent) != 1] or axes[:1]
        if len(long) != 1:
            raise ScheduleError(
                f"Block {block.name_hint} has {len(long)} {what} iterators; attention has one."
            )
        return long[0]

    def _sides(self, mean: Any, values: dict[Any, Any], last: Any) -> tuple[Any, Any, Any, Any]:
        """Weights and V of the second product, and its row and column."""
        raw = _factors(mean)
        assert raw is not None
        both = [self._simplified(self._resolved(substitute(one, values))) for one in raw]
        hot = [_has_exponential(one) for one in both]
        if sum(hot) != 1:
            raise ScheduleError(
                f"Block {mean.name_hint} does not multiply weights of a softmax by values."
            )
        side = hot.index(True)
        found = []
        for own, other, what in ((side, 1 - side, "row"), (1 - side, side, "column")):
            axes = [
                one
                for one in mean.iter_vars
                if one.iter_type != _REDUCED and uses(raw[own], one.var)
                and not uses(raw[other], one.var)
            ]  # fmt: skip
            var = values[self._only(axes, mean, what).var]
            # A single row has no iterator left; any of one iteration stands for it.
            alone = [i.var for i in last.iter_vars if size_of(i.dom.extent) == 1]
            var = alone[-1] if alone and isinstance(var, tirx.IntImm) else var
            if not isinstance(var, tirx.Var):
                raise ScheduleError(f"The {what} of the result is {var}, no iterator of its own.")
            found.append(var)
        v = _plain(both[1 - side])
        if not isinstance(v, tvm.ir.TensorLoad):
            raise ScheduleError(f"Block {mean.name_hint} multiplies weights by {v}, no element.")
        return both[side], v, *found

    # The softmax.

    def _softmax(self, weights: Any, key: Any) -> tuple[Scores, Any]:
        share, total = self._quotient(_plain(weights))
        total, beside = self._apart(_plain(total))
        block = self._made_by(total, "the sum of weights")
        term = term_of(block, tirx.Add)
        if term is None or len(_summed(block)) != 1:
            raise ScheduleError(f"Block {block.name_hint} is no sum of weights.")
        values = self._values_at(block, total.indices) | {_summed(block)[0].var: key.var}
        added = self._simplified(self._resolved(substitute(term, values)))
        if not tvm_ffi.structural_equal(_plain(added), _plain(share)):
            raise ScheduleError(
                f"Block {block.name_hint} adds up other weights than those that are divided by it."
            )
        return self._power(_plain(share), key.var, beside)

    def _apart(self, total: Any) -> tuple[Any, Any]:
        """The sum over keys, and what is added to it, or None."""
        if isinstance(total, tirx.Add):
            for one, other in ((total.a, total.b), (total.b, total.a)):
                if isinstance(_plain(one), tvm.ir.TensorLoad) and _has_exponential(other):
                    return _plain(one), _plain(other)
        return total, None

    def _quotient(self, value: Any) -> tuple[Any, Any]:
        if isinstance(value, tirx.Div):
            return value.a, value.b
        if isinstance(value, tirx.Mul):
            for one, other in ((value.a, value.b), (value.b, value.a)):
                turned = _plain(other)
                if isinstance(turned, tirx.Div) and _number(turned.a) == 1:
                    return one, turned.b
        raise ScheduleError(f"Weights are {value}, which is no quotient by their sum.")

    def _power(self, share: Any, key: Any, beside: Any) -> tuple[Scores, Any]:
        """The exponent of a weight, and the load of its score."""
        visible = []
        while (parts := choice_parts(share)) and is_zero(parts[2]):
            visible.append(self.analyzer.simplify(parts[0]))
            share = _plain(parts[1])
        logit, top, factor = self._exponent(share)
        highest = _plain(top)
        if beside is not None and isinstance(highest, tirx.Max):
            highest = next((one for one in (highest.a, highest.b) if not self._is_given(one)), top)
        block = self._made_by(_plain(highest), "a maximum")
        if term_of(block, tirx.Max) is None or uses(top, key):
            raise ScheduleError(f"Block {block.name_hint} is no maximum of a row.")
        found, load = self._logit(_plain(logit), tuple(visible))
        found = found.times(factor)
        if beside is None:
            return found, load
        sink, other, factor = self._exponent(beside)
        if not tvm_ffi.structural_equal(other, top) or uses(sink, key) or not self._is_given(sink):
            raise ScheduleError(f"A sum of weights has {beside} beside them, which is no sink.")
        return replace(found, sink=_wide(sink) * tirx.const(factor, "float32")), load

    def _exponent(self, power: Any) -> tuple[Any, Any, float]:
        """A logit and the maximum that is taken off, and the factor that makes it one of base 2."""
        if not is_call_of(power, ops.EXP, ops.EXP2):
            raise ScheduleError(f"A weight is {power}, which is no power.")
        exponent, factor = _scaled(power.args[0])
        factor *= LOG2_E if is_call_of(power, ops.EXP) else 1
        if not isinstance(exponent, tirx.Sub):
            raise ScheduleError(f"The exponent of a weight is {exponent}; no maximum is taken off.")
        return exponent.a, exponent.b, factor

    def _logit(self, value: Any, visible: tuple[Any, ...]) -> tuple[Scores, Any]:
        value, factor = _scaled(value)
        if factor != 1:
            found, load = self._logit(value, visible)
            return found.times(factor), load
        if parts := choice_parts(value):
            condition, shown, hidden = parts
            if (number := _number(shown)) is not None and number <= _HIDDEN:
                condition, shown, hidden = tirx.Not(condition), hidden, shown
            condition = self.analyzer.simplify(condition)
            known = any(tvm_ffi.structural_equal(condition, one) for one in visible)
            other = _number(hidden)
            if not known and (other is None or other > _HIDDEN):
                raise ScheduleError(f"A score is {value}, which hides nothing.")
            more = visible if known else (*visible, condition)
            return self._logit(_plain(shown), more)
        if isinstance(value, tirx.Add | tirx.Sub):
            taken = isinstance(value, tirx.Sub)
            for one, other in ((value.a, value.b), (value.b, value.a)):
                if self._is_given(other) and not (taken and one is value.b):
                    return self._biased(one, other, taken, visible)
        if isinstance(value, tvm.ir.TensorLoad):
            return Scores(1.0, None, visible), value
        if isinstance(value, tirx.Max):
            for one, other in ((value.a, value.b), (value.b, value.a)):
                # Nothing that is seen is as low as the lowest number of a type.
                if (number := _number(other)) is not None and number <= _LOWEST:
                    return self._logit(_plain(one), visible)
        return self._curved(value, visible)

    def _curved(self, value: Any, visible: tuple[Any, ...]) -> tuple[Scores, Any]:
        """A score of which something is computed element by element."""
        made = [load for load in loads_in(value) if not self._is_given(load)]
        if not made or not all(tvm_ffi.structural_equal(one, made[0]) for one in made):
            raise ScheduleError(
                f"A score is {value}; it may be scaled, hidden, added to, or given to a function."
            )
        score = tirx.Var("score", "float32")
        return Scores(1.0, None, visible, Curve(score, _wide(value, made[0], score))), made[0]

    def _biased(self, value: Any, bias: Any, taken: bool, visible: tuple[Any, ...]) -> Any:
        """A score to which something is added; a number far below zero hides it."""
        if isinstance(bias, tirx.Add) and not taken:
            return self._logit(value + bias.a + bias.b, visible)
        parts = choice_parts(_plain(bias))
        numbers = [_number(part) for part in parts[1:]] if parts else []
        if parts and not taken and None not in numbers:
            low, high = sorted(numbers)  # type: ignore[type-var]
            if high == 0 and low is not None and low <= _HIDDEN:
                shown = parts[0] if numbers[0] == 0 else tirx.Not(parts[0])
                return self._logit(_plain(value), (*visible, self.analyzer.simplify(shown)))
        found, load = self._logit(_plain(value), visible)
        bias = under_guards(bias, self.analyzer)
        more = bias.astype("float32") * tirx.const(-1.0 if taken else 1.0, "float32")
        bias = more if found.bias is None else found.bias + more
        return replace(found, bias=bias), load

    def _is_given(self, value: Any) -> bool:
        """Whether an expression depends on inputs alone."""
        made = [block.body.buffer for _, block in self.blocks]
        return not any(is_among(load.source, made) for load in loads_in(value))

    # The first product.

    def _operands(
        self, product: Any, load: Any, moving: tuple[Any, Any]
    ) -> tuple[Any, Any, Any, float]:
        raw = _factors(product)
        if raw is None:
            raise ScheduleError(f"Block {product.name_hint} is no product, as scores are.")
        depth = self._only(_summed(product), product, "summed")
        self.analyzer.bind(depth.var, depth.dom)
        values = self._values_at(product, load.indices) | {depth.var: depth.var}
        found, factor = [], 1.0
        for one in raw:
            side, more = _scaled(self._simplified(self._resolved(substitute(one, values))))
            if not isinstance(side, tvm.ir.TensorLoad):
                raise ScheduleError(f"Block {product.name_hint} multiplies {side}, no element.")
            found.append(side)
            factor *= more
        found.sort(key=lambda one: uses(one, moving[1]))
        q, k = found
        q = q if uses(q, moving[0]) else _with_row(q, moving[0])
        if [uses(q, one) for one in moving] + [uses(k, one) for one in moving] != [1, 0, 0, 1]:
            raise ScheduleError(
                f"Block {product.name_hint} multiplies {q} by {k}; one has the rows of the result, "
                "the other those of the values."
            )
        return q, k, depth, factor

    def _store(self, last: Any, mean: Any, value: Any, total: Any) -> Any:
        """The store of the result, by the variable that stands for a mean."""
        buffer = last.body.buffer
        if value is None:
            given = total.astype(buffer.dtype)
        else:
            narrow = total.astype(mean.body.buffer.dtype)
            own = mean.body.buffer

            def load(one: Any) -> Any:
                return narrow if one.source.same_as(own) else one

            given = tvm_ffi.structural_map(value, [(tvm.ir.TensorLoad, load)], order="post")
            self._check_given(given, last)
        return tirx.BufferStore(buffer, given, last.body.indices)

    def _check_given(self, value: Any, last: Any) -> None:
        if not self._is_given(value):
            raise ScheduleError(f"Block {last.name_hint} reads more than inputs and the mean.")
