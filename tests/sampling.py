"""How much of a large matrix a plain run does: at least a sixtieth, chosen by a fixed seed."""

from __future__ import annotations

import math

SEED = 20
#: Set by conftest from ``--whole`` and ``--matrix-seed``.
whole, seed = False, SEED


def sample_size(cases: int) -> int:
    """Cases of a matrix that run: all of a small one, else a sixtieth and at least two."""
    return cases if whole or cases <= 2 else max(2, math.ceil(cases / 60))


def matrix_examples(count: int) -> int:
    """Hypothesis examples to draw where a whole run draws ``count``."""
    return count if whole else max(10, math.ceil(count / 20))
