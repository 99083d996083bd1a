"""Index expressions as the planning of barriers sees them: meaning, periods, unknown parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import tirx

from tvm_layout_ext.analysis.barriers.terms import UNKNOWN, Scope, Symbol, Term, Uncertain

K, T, N, V = (tirx.Var(name, "int32") for name in ("k", "t", "n", "v"))
STEP = Symbol(tirx.Var("k", "int32"))
THREAD = Symbol(tirx.Var("threadIdx.x", "int32"), "threadIdx.x", varies=True, extent=32)
INDEX, FIXED = (tirx.decl_buffer((64,), "int32", name) for name in ("I", "F"))


def meant(expr: Any) -> Term:
    scope = Scope(frozenset([FIXED])).having(K, STEP).having(T, THREAD)
    return scope.term(expr)


@pytest.mark.parametrize(
    ("expr", "period"),
    [
        (T, 1),
        (K, None),
        (K % 3, 3),
        ((K + 2) % 3 * 64 + T, 3),
        ((K * 5 + T) % 8, 8),
        (K & 7, 8),
        (K & 5, None),
        (K % 4 + K % 6, 12),
        (K % 4 + K, None),
        ((K % 6) % 4, 6),
        (tirx.Select(K % 2 == 0, T, T + 1), 2),
        (tirx.Let(V, K % 5, V * 2), 5),
        (K.astype("int64") % 7, 7),
        (tirx.Ramp(K % 2 * 4, 1, 4), 2),
    ],
)
def test_a_period_changes_no_value(expr: Any, period: int | None) -> None:
    term = meant(expr)
    assert term.period(STEP) == period
    if period is not None:
        lanes = np.arange(32)[:, None]
        at = [term.value({STEP: np.int64(k), THREAD: lanes}) for k in range(30 + period)]
        assert all((at[k] == at[k + period]).all() for k in range(30))


def test_what_a_term_depends_on() -> None:
    assert meant(K * 4 + T).symbols == {STEP, THREAD}
    assert meant(INDEX[K] + T).symbols == {UNKNOWN, THREAD}
    (loaded,) = meant(FIXED[K]).symbols
    assert (loaded.name, loaded.varies) == ("F", False)
    assert meant(FIXED[T]).varies
    (outer,) = meant(N * 2).symbols
    assert (outer.name, outer.varies) == ("n", False)


def test_constants_and_what_has_no_value() -> None:
    assert meant(tirx.IntImm("int32", 6) * 7).constant() == 42
    assert meant(K).constant() is None
    assert meant(tirx.Ramp(0, 1, 4)).constant() is None
    with pytest.raises(Uncertain, match="unknown"):
        meant(INDEX[0] + K).value({STEP: np.int64(0)})
