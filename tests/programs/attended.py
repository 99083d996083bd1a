"""Attention in the forms in which programs write it, and what NumPy makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import s_tir, tirx

import tvm_layout_ext as tlx
from tests.programs.warpgroups import SM90A, TYPES
from tvm_layout_ext import te

HIDDEN = -1e30
#: ``condition(i, j)`` of TIR's expressions as of NumPy's arrays.
Condition = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Heads:
    """Attention of a batch of heads; ``order`` is that of batch, head and row in memory.

    Where it is ``merged``, heads of Q, K and V lie side by side in a row.

    ``seen`` are conditions that must all hold; ``bias`` adds an input to scores, and ``shown``
    hides those where an input is false. Scores are at most ``cap``, if that is not 0. ``factors``
    multiplies scores by an input by head, and ``slopes`` adds one times the distance to the key;
    ``sinks`` adds the power of one to a row's sum.
    """

    heads: int = 1
    kept: int = 1
    queries: int = 64
    keys: int = 64
    depth: int = 64
    width: int = 64
    dtype: str = "float16"
    order: str = "bhs"
    seen: tuple[Condition, ...] = ()
    bias: bool = False
    shown: bool = False
    cap: float = 0
    factors: bool = False
    slopes: bool = False
    sinks: bool = False
    #: Rows of K and V behind those that are read.
    spare: int = 0
    #: Whether the function takes any number of rows; ``queries`` are those of ``arrays``.
    any_rows: bool = False
    #: The same of keys; those of as many keys as rows are counted by one variable.
    any_keys: bool = False

    def _sizes(self, heads: int, rows: int, columns: int) -> tuple[int, ...]:
        if self.order == "merged":
            return (1, rows, heads * columns)
        return (1, heads, rows, columns) if self.order == "bhs" else (1, rows, heads, columns)

    def _at(self, h: Any, i: Any, x: Any) -> tuple[Any, ...]:
        if self.order == "merged":  # Of such heads Q, K and V are equally wide.
            return (0, i, h * self.depth + x)
        return (0, h, i, x) if self.order == "bhs" else (0, i, h, x)

    def _counts(self) -> tuple[Any, Any]:
        """How many rows and keys there are."""
        rows = tirx.Var("n", "int64") if self.any_rows else self.queries
        if not self.any_keys:
            return rows, self.keys
        is_square = self.any_rows and self.queries == self.keys
        return rows, rows if is_square else tirx.Var("m", "int64")

    def func(self) -> tirx.PrimFunc:
        """The function."""
        h, (n, m) = self.heads, self._counts()
        held = m + self.spare
        sizes = (h, n, self.depth), (self.kept, held, self.depth), (self.kept, held, self.width)
        inputs = [
            te.placeholder(self._sizes(*size), self.dtype, name=name)
            for name, size in zip("QKV", sizes, strict=True)
        ]
        bias = te.placeholder((n, m), "float16", name="bias")
        shown = te.placeholder((m,), "bool", name="shown")
        inputs += [bias] * self.bias + [shown] * self.shown
        factors, slopes, sinks = by_head = [
            te.placeholder((h,), self.dtype, name=name) for name in ("factors", "slopes", "sinks")
        ]
        asked = self.factors, self.slopes, self.sinks
        inputs += [one for one, is_asked in zip(by_head, asked, strict=True) if is_asked]
        q, k, v = inputs[:3]
        r = te.reduce_axis((0, self.depth), "r")
        js = [te.reduce_axis((0, m), name) for name in "koj"]
        of = h // self.kept

        def wide(tensor: Any, *at: Any) -> Any:
            return tensor[self._at(*at)].astype("float32")

        def logit(h: Any, i: Any, j: Any) -> Any:
            found = scores[h, i, j] * tirx.const(self.depth**-0.5, "float32")
            found = found * factors[h].astype("float32") if self.factors else found
            found = tirx.tanh(found / self.cap) * self.cap if self.cap else found
            if self.slopes:
                found = found + slopes[h].astype("float32") * (j - i).astype("float32")
            found = found + bias[i, j].astype("float32") if self.bias else found
            parts = [condition(i, j) for condition in self.seen] + [shown[j]] * self.shown
            hidden = tirx.const(HIDDEN, "float32")
            return tirx.if_then_else(tirx.all(*parts), found, hidden) if parts else found

        def score(h: Any, i: Any, j: Any) -> Any:
            return te.sum(wide(q, h, i, r) * wide(k, h // of, j, r), axis=r)

        def weight(h: Any, i: Any, j: Any) -> Any:
            sums = total[h, i]
            if self.sinks:
                sums = sums + tirx.exp(sinks[h].astype("float32") - top[h, i])
            return (shares[h, i, j] / sums).astype(self.dtype)

        def weighted(h: Any, i: Any, x: Any) -> Any:
            one = weights[h, i, js[2]].astype("float32")
            return te.sum(one * wide(v, h // of, js[2], x), axis=js[2])

        every = (h, n, m)
        scores = te.compute(every, score, "scores")
        logits = te.compute(every, logit, "logits")
        top = te.compute((h, n), lambda h, i: te.max(logits[h, i, js[0]], axis=js[0]), "top")
        if self.sinks:
            own = top
            top = te.compute(
                (h, n), lambda h, i: tirx.max(own[h, i], sinks[h].astype("float32")), "with_sink"
            )
        shares = te.compute(every, lambda h, i, j: tirx.exp(logits[h, i, j] - top[h, i]), "shares")
        total = te.compute((h, n), lambda h, i: te.sum(shares[h, i, js[1]], axis=js[1]), "total")
        weights = te.compute(every, weight, "weights")
        mean = te.compute((h, n, self.width), weighted, "mean")

        def result(b: Any, one: Any, other: Any, x: Any) -> Any:
            h, i = (one, other) if self.order == "bhs" else (other, one)
            return mean[h, i, x].astype(self.dtype)

        sizes = (1, h, n, self.width) if self.order == "bhs" else (1, n, h, self.width)
        out = te.compute(sizes, result, "out")
        return te.create_prim_func([*inputs, out]).with_attr("global_symbol", "main")

    def arrays(self, scale: float = 1.0) -> list[np.ndarray]:
        """Random inputs."""
        rng, kind = np.random.default_rng(self.queries), TYPES[self.dtype]
        sizes = (
            (self.heads, self.queries, self.depth),
            (self.kept, self.keys + self.spare, self.depth),
            (self.kept, self.keys + self.spare, self.width),
        )
        drawn = [rng.standard_normal(self._sizes(*size), np.float32) for size in sizes]
        made = [(one * scale).astype(kind) for one in drawn]
        if self.bias:
            made.append(rng.standard_normal((self.queries, self.keys)).astype(np.float16))
        if self.shown:
            made.append(rng.random(self.keys) < 0.5)
        by_head = rng.standard_normal((3, self.heads), np.float32)
        by_head[1] = -np.abs(by_head[1]) / 8
        by_head[2] *= 3
        asked = self.factors, self.slopes, self.sinks
        return made + [by_head[at].astype(kind) for at in range(3) if asked[at]]

    def exact(self, q: Any, k: Any, v: Any, *more: Any) -> Any:
        """The result in float64."""
        q, k, v = (self._by_head(one).astype(np.float64) for one in (q, k, v))
        k, v = (one[:, : self.keys] for one in (k, v))
        k, v = (np.repeat(one, self.heads // self.kept, axis=0) for one in (k, v))
        scores = q @ k.swapaxes(1, 2) * self.depth**-0.5
        i, j = np.arange(self.queries)[:, None], np.arange(self.keys)[None]
        by_head = iter(
            one.astype(np.float64)[:, None, None] for one in more[self.bias + self.shown :]
        )
        scores = scores * next(by_head) if self.factors else scores
        scores = np.tanh(scores / self.cap) * self.cap if self.cap else scores
        scores = scores + next(by_head) * (j - i) if self.slopes else scores
        scores = scores + (more[0].astype(np.float64) if self.bias else 0)
        for condition in self.seen:
            scores = np.where(condition(i, j), scores, HIDDEN)
        if self.shown:
            scores = np.where(more[self.bias], scores, HIDDEN)
        sinks = next(by_head) if self.sinks else np.full((1, 1, 1), -np.inf)
        top = np.maximum(scores.max(-1, keepdims=True), sinks)
        shares = np.exp(scores - top)
        mean = shares / (shares.sum(-1, keepdims=True) + np.exp(sinks - top)) @ v
        return mean[None] if self.order == "bhs" else mean.swapaxes(0, 1)[None]

    def _by_head(self, array: Any) -> Any:
        if self.order == "merged":
            array = array.reshape(*array.shape[:2], -1, self.depth)
        return array[0] if self.order == "bhs" else array[0].swapaxes(0, 1)

    def schedule(self, **wished: int) -> s_tir.Schedule:
        """The schedule of one kernel."""
        sch = s_tir.Schedule(self.func())
        with SM90A:
            sch.fuse_attention("mean", **wished)
        return sch


def error(case: Heads, program: Any, scale: float = 1.0) -> tuple[float, list[Any]]:
    """The largest difference from float64 on the simulated GPU, and hazards."""
    arrays = case.arrays(scale)
    report = tlx.simulate(program, *arrays, target=SM90A, progress=False)
    found = next(iter(report.outputs.values())).astype(np.float64)
    return float(np.abs(found - case.exact(*arrays)).max()), report.hazards
