"""Attention of sequences of any lengths, whose rows lie one behind the other.

Q is T x H x D, K and V are S x G x D: H / G heads of Q share one of K and V. Sequence b has the
rows from ``q_start[b]`` to before ``q_start[b + 1]`` of Q, and those of ``k_start`` of K and V;
both are B + 1 numbers that never fall and that only the GPU knows, so any sequence may be empty.
The result of a row that sees no key is zero. One kernel of warpgroups finds the sequence of each
tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from tvm import s_tir, tirx

from tvm_layout_ext import te
from tvm_layout_ext.gpu.hardware import Architecture, architecture
from tvm_layout_ext.schedules import attention
from tvm_layout_ext.schedules._gemm_hopper import check_wgmma
from tvm_layout_ext.transform.attention.ragged import Ragged, RaggedAttention, with_kernel
from tvm_layout_ext.tune.space.knobs import Config, Refusal, knob
from tvm_layout_ext.tune.space.operator import Operator, draw

__all__ = ["operator"]

_HIDDEN = -1e30
KNOBS = (
    knob("keys", (64, 96, 128), default=128),
    #: Warpgroups that multiply.
    knob("consumers", (1, 2), default=2),
)


def compute(shape: tuple[int, ...], dtype: str, causal: bool = False) -> list[Any]:
    """What is computed; ``seen`` says which rows are of one sequence."""
    b, h, g, t, s, d = shape
    Q = te.placeholder((t, h, d), dtype, name="Q")
    K, V = (te.placeholder((s, g, d), dtype, name=name) for name in "KV")
    first, keys = (te.placeholder((b + 1,), "int32", name=f"{n}_start") for n in "qk")
    r, of = te.reduce_axis((0, d), name="r"), max(h // g, 1)
    n = te.reduce_axis((0, b), name="n")
    k, o, j = (te.reduce_axis((0, s), name=name) for name in "koj")

    def own(i: Any, j: Any) -> Any:
        parts = [first[n] <= i, i < first[n + 1], keys[n] <= j, j < keys[n + 1]]
        parts += [j - keys[n + 1] <= i - first[n + 1]] if causal else []
        return te.max(te.all(*parts).astype("int32"), axis=n)

    def wide(tensor: Any, *at: Any) -> Any:
        return tensor[at].astype("float32")

    def logit(h: Any, i: Any, j: Any) -> Any:
        found = scores[h, i, j] * tirx.const(d**-0.5, "float32")
        return tirx.Select(seen[i, j] > 0, found, tirx.const(_HIDDEN, "float32"))

    def share(h: Any, i: Any, j: Any) -> Any:
        power = tirx.exp(logits[h, i, j] - top[h, i])
        return tirx.Select(seen[i, j] > 0, power, tirx.const(0.0, "float32"))

    def weight(h: Any, i: Any, j: Any) -> Any:
        whole = tirx.max(total[h, i], tirx.const(1e-30, "float32"))
        return (shares[h, i, j] / whole).astype(dtype)

    every = (h, t, s)
    seen = te.compute((t, s), own, name="seen")
    scores = te.compute(
        every, lambda h, i, j: te.sum(wide(Q, i, h, r) * wide(K, j, h // of, r), axis=r), "scores"
    )
    logits = te.compute(every, logit, name="logits")
    top = te.compute((h, t), lambda h, i: te.max(logits[h, i, k], axis=k), name="top")
    shares = te.compute(every, share, name="shares")
    total = te.compute((h, t), lambda h, i: te.sum(shares[h, i, o], axis=o), name="total")
    weights = te.compute(every, weight, name="weights")
    mean = te.compute(
        (t, h, d),
        lambda i, h, x: te.sum(wide(weights, h, i, j) * wide(V, j, h // of, x), axis=j),
        name="mean",
    )
    return [
        Q, K, V, first, keys,
        te.compute((t, h, d), lambda *at: mean[at].astype(dtype), name="O"),
    ]  # fmt: skip


def schedule(tensors: Sequence[Any], config: Config, causal: bool = False) -> s_tir.Schedule:
    """How: one kernel, written whole."""
    func = te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")
    q, k, v, first, keys, output = func.params
    what = RaggedAttention(
        q,
        first,
        Ragged(k, v, keys),
        output,
        None,
        tirx.const(int(causal), "int32"),
        tirx.const(int(q.shape[2]) ** -0.5, "float32"),
        (int(config["keys"]), int(config["consumers"])),
    )
    return s_tir.Schedule(with_kernel(func, what, architecture("sm_90a")))


def check(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> Refusal | None:
    """Why a configuration is not legal before it is scheduled, or None."""
    if shape[1] % shape[2]:
        return Refusal("heads", f"{shape[1]} heads of Q do not share {shape[2]} of K and V.")
    return check_wgmma(architecture)


def fit(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> dict[str, Any]:
    """Keys of a tile, by the columns of a head."""
    return attention.fit(shape, dtype, config, architecture)


def inputs(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Heads, and sequences of random lengths."""
    b, h, g, t, s, d = shape
    starts = []
    for rows in (t, s):
        inner = np.sort(rng.integers(0, rows, b - 1, endpoint=True))
        starts.append(np.concatenate([[0], inner, [rows]]).astype("int32"))
    sizes = (t, h, d), (s, g, d), (s, g, d)
    return [*(draw(size, dtype, rng) for size in sizes), *starts]


def reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, first: Any, keys: Any, causal: bool = False
) -> np.ndarray:
    """What NumPy makes of it, in float64."""
    found = np.zeros(q.shape)
    for (a, b), (c, d) in zip(pairwise(first), pairwise(keys), strict=True):
        skipped = max(0, (b - a) - (d - c)) if causal else 0
        if d > c and a + skipped < b:
            rows = q[a + skipped : b]
            one, *both = (x.swapaxes(0, 1)[None] for x in (rows, k[c:d], v[c:d]))
            means = attention.reference(one.astype(np.float64), *both, causal=causal)
            found[a + skipped : b] = means[0].swapaxes(0, 1)
    return found.astype(q.dtype)


def operator(name: str, causal: bool) -> Operator:
    """Make the operator; ``causal``: a row sees no key behind its own, counted from the last."""
    return Operator(
        name=name,
        dims=("B", "H", "G", "T", "S", "D"),
        parallel=("H",),
        dtypes=("float16", "bfloat16"),
        knobs=KNOBS,
        compute=partial(compute, causal=causal),
        schedule=partial(schedule, causal=causal),
        check=check,
        reference=partial(reference, causal=causal),
        inputs=inputs,
        flops=lambda shape: attention.flops((1, *shape[1:])) // (2 if causal else 1) // shape[0],
        tolerance=attention.tolerance,
        fit=fit,
        judged_late=True,
    )


OPERATOR = operator("ragged_attention", causal=False)
