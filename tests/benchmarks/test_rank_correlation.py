"""Rankings by models beside measured times."""

from __future__ import annotations

from pathlib import Path

from benchmarks.rank_correlation import correlations

SWEEP = next((Path(__file__).parents[2] / "benchmarks" / "results").glob("h200_sweep_row_sum*"))


def test_both_models_rank_candidates_of_a_sweep() -> None:
    found = correlations(SWEEP, modelled=4, simulated=2, processes=1)
    assert found["latency"]["candidates"] == 4
    assert found["simulator"]["candidates"] == 2
