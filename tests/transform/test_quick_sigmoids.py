"""Sigmoids that are factors of what is rounded to 16 bits are computed quickly; others are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te, tirx

from tests.programs.emitted import cuda_text
from tests.programs.mapped import computed
from tvm_layout_ext.simulate import simulate

QUICK = ("__expf(", "__fdividef(")


def gated(dtype: str) -> s_tir.Schedule:
    """SiLU of a half of each row times the other half, the SiLU rounded once."""
    x = te.placeholder((8, 512), dtype, "A")

    def rule(i: Any, j: Any) -> Any:
        wide = x[i, j].astype("float32")
        return (wide * tirx.sigmoid(wide)).astype(dtype) * x[i, j + 256]

    sch = s_tir.Schedule(te.create_prim_func([x, te.compute((8, 256), rule, "B")]))
    sch.auto_coalesce("B")
    return sch


def calls(sch: s_tir.Schedule) -> set[str]:
    text = cuda_text(sch)
    body = text[text.rindex("__global__") :]
    return {name for name in (*QUICK, " expf(") if name in body}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_silu_times_a_gate_is_quick(dtype: str) -> None:
    assert calls(gated(dtype)) == set(QUICK)


def test_silu_times_a_gate_is_right() -> None:
    a = np.random.default_rng(0).normal(0, 6, (8, 512)).astype("float16")
    a[0, :4], a[0, 256:260] = [65504, -600, 0, -20], 1
    (got,) = simulate(gated("float16"), a, None, progress=False).outputs.values()
    wide = a[:, :256].astype("float64")
    want = (wide / (1 + np.exp(-wide))).astype("float16") * a[:, 256:]
    np.testing.assert_allclose(got, want, 2**-10, 2**-24)


EXACT: tuple[Callable[..., Any], ...] = (
    lambda a, i, j: tirx.sigmoid(a[i, j].astype("float32")),
    lambda a, i, j: (tirx.sigmoid(a[i, j].astype("float32")) - 0.5).astype("float16"),
    lambda a, i, j: tirx.exp(a[i, j].astype("float32")).astype("float16"),
)


@pytest.mark.parametrize("rule", EXACT)
def test_what_is_not_rounded_at_once_is_exact(rule: Any) -> None:
    sch = computed((8, 256), rule, "float16")
    sch.auto_coalesce("B")
    assert calls(sch) == {" expf("}
