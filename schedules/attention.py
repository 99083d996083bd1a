"""Means of the rows of V, weighted by a softmax of what rows of Q and K have in common.

Q is B x H x M x D, K and V are B x G x N x D: H / G heads of Q share one of K and V. One kernel of
warpgroups keeps scores in registers, which wants a GPU with ``wgmma``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from tvm import s_tir, tirx

from tvm_layout_ext import te
from tvm_layout_ext.analysis.attention import Attention, read_attention
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.gpu.hardware import Architecture
from tvm_layout_ext.schedules._gemm_hopper import check_wgmma
from tvm_layout_ext.transform.attention.fit import fit_attention, keys_of
from tvm_layout_ext.tune.space.knobs import Config, Refusal, knob
from tvm_layout_ext.tune.space.operator import Operator, Tolerance

__all__ = ["operator"]

_HIDDEN = -1e30
KNOBS = (
    knob("keys", (64, 80, 96, 112, 128, 144, 160, 176), default=128),
    knob("stages", (2, 3, 4), default=2),
    #: Warpgroups that multiply; 0 leaves them to the model.
    knob("consumers", (0, 1, 2, 3), default=0),
)


def compute(
    shape: tuple[int, ...], dtype: str, causal: bool = False, biased: bool = False
) -> list[Any]:
    """What is computed."""
    b, h, g, m, n, d = shape
    Q = te.placeholder((b, h, m, d), dtype, name="Q")
    K, V = (te.placeholder((b, g, n, d), dtype, name=name) for name in "KV")
    bias = te.placeholder((b, h, m, n), dtype, name="bias")
    r = te.reduce_axis((0, d), name="r")
    k, o, j = (te.reduce_axis((0, n), name=name) for name in "koj")
    # Fewer heads of Q than of K are refused by `check`, in a sentence.
    of, scale = max(h // g, 1), tirx.const(d**-0.5, "float32")

    def score(b: Any, h: Any, i: Any, j: Any) -> Any:
        return te.sum(Q[b, h, i, r].astype("float32") * K[b, h // of, j, r].astype("float32"), r)

    scores = te.compute((b, h, m, n), score, name="scores")

    def logit(b: Any, h: Any, i: Any, j: Any) -> Any:
        found = scores[b, h, i, j] * scale
        found = found + bias[b, h, i, j].astype("float32") if biased else found
        hidden = tirx.const(_HIDDEN, "float32")
        return tirx.Select(j <= i + (n - m), found, hidden) if causal else found

    logits = te.compute((b, h, m, n), logit, name="logits")
    top = te.compute((b, h, m), lambda b, h, i: te.max(logits[b, h, i, k], axis=k), name="top")
    shares = te.compute(
        (b, h, m, n), lambda b, h, i, j: tirx.exp(logits[b, h, i, j] - top[b, h, i]), name="shares"
    )
    total = te.compute((b, h, m), lambda b, h, i: te.sum(shares[b, h, i, o], axis=o), name="total")
    weights = te.compute(
        (b, h, m, n),
        lambda b, h, i, j: (shares[b, h, i, j] / total[b, h, i]).astype(dtype),
        name="weights",
    )

    def weighted(b: Any, h: Any, i: Any, x: Any) -> Any:
        one, other = weights[b, h, i, j], V[b, h // of, j, x]
        return te.sum(one.astype("float32") * other.astype("float32"), axis=j)

    mean = te.compute((b, h, m, d), weighted, name="mean")
    out = te.compute((b, h, m, d), lambda *at: mean[at].astype(dtype), name="O")
    return [Q, K, V, *([bias] if biased else []), out]


def schedule(tensors: Sequence[Any], config: Config) -> s_tir.Schedule:
    """How: one kernel."""
    sch = s_tir.Schedule(te.create_prim_func(list(tensors)).with_attr("global_symbol", "main"))
    sch.fuse_attention("mean", **{knob.name: int(config[knob.name]) for knob in KNOBS})
    return sch


def fit(
    shape: tuple[int, ...],
    dtype: str,
    config: Config,
    architecture: Architecture,
    biased: bool = False,
) -> dict[str, Any]:
    """Keys of a tile, by how many there are and by the columns of a head."""
    return {"keys": keys_of(shape[-1], shape[-1], shape[-2], biased)}


def check(
    shape: tuple[int, ...],
    dtype: str,
    config: Config,
    architecture: Architecture,
    biased: bool = False,
) -> Refusal | None:
    """Why a configuration is not legal before it is scheduled, or None."""
    if shape[1] % shape[2]:
        return Refusal("heads", f"{shape[1]} heads of Q do not share {shape[2]} of K and V.")
    if refusal := check_wgmma(architecture):
        return refusal
    numbers = {knob.name: int(config[knob.name]) for knob in KNOBS}
    try:
        fit_attention(_read(shape, dtype, biased), architecture, **numbers)
    except ScheduleError as error:
        return Refusal("tiles", str(error))
    return None


@lru_cache(maxsize=16)
def _read(shape: tuple[int, ...], dtype: str, biased: bool) -> Attention:
    # Which keys are hidden changes no tile's bytes.
    return read_attention(te.create_prim_func(compute(shape, dtype, biased=biased)))


def reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *bias: np.ndarray, causal: bool = False
) -> np.ndarray:
    """What NumPy makes of it, in float64."""
    of = q.shape[1] // k.shape[1]
    left, *right = (one.astype(np.float64) for one in (q, k, v))
    keys, values = (np.repeat(one, of, axis=1) for one in right)
    scores = left @ keys.swapaxes(2, 3) * q.shape[-1] ** -0.5
    scores = scores + sum(one.astype(np.float64) for one in bias)
    if causal:
        rows, columns = scores.shape[2:]
        scores[..., ~np.tri(rows, columns, columns - rows, dtype=bool)] = _HIDDEN
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return (shares / shares.sum(-1, keepdims=True) @ values).astype(q.dtype)


def flops(shape: tuple[int, ...]) -> int:
    """Operations of both products; where half of the keys are hidden, it is half of them."""
    b, h, _, m, n, d = shape
    return 4 * b * h * m * n * d


def tolerance(shape: tuple[int, ...], dtype: str) -> Tolerance:
    """Weights and results are rounded to 16 bits, once each."""
    return Tolerance(2e-3, 2e-3) if dtype == "float16" else Tolerance(1.6e-2, 1.6e-2)


def operator(name: str, causal: bool = False, biased: bool = False) -> Operator:
    """Make the operator.

    ``causal``: row i of the last M sees keys up to its own; ``biased``: B x H x M x N numbers, of
    the operands' type, are added to scores.
    """
    return Operator(
        name=name,
        dims=("B", "H", "G", "M", "N", "D"),
        parallel=("B", "H"),
        dtypes=("float16", "bfloat16"),
        knobs=KNOBS,
        compute=partial(compute, causal=causal, biased=biased),
        schedule=schedule,
        check=partial(check, biased=biased),
        reference=partial(reference, causal=causal),
        flops=lambda shape: flops(shape) // (2 if causal else 1),
        tolerance=tolerance,
        fit=partial(fit, biased=biased),
        judged_late=True,
    )


OPERATOR = operator("attention")
