"""Operands of a reduction move no more than before, however an iteration reads them."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import te

from .test_auto_coalesce_cut import check


def at_two_places(rows: int, columns: int, factor: bool) -> Any:
    """Sums over all columns of a product of each row with itself, backwards, and of a vector."""
    a, w = (te.placeholder(s, "float32", n) for s, n in (((rows, columns), "A"), ((columns,), "W")))
    i, j = te.reduce_axis((0, rows), "i"), te.reduce_axis((0, columns), "j")

    def element(d: Any) -> Any:
        found = a[i, j] * a[rows - 1 - i, columns - 1 - j] + a[(i + d) % rows, j]
        return te.sum(found * w[j] if factor else found, axis=[i, j])

    return te.create_prim_func([a, *[w] * factor, te.compute((5,), element, "B")])


def vector_at_two_places(rows: int, columns: int) -> Any:
    """Sums of rows times a vector and the same vector backwards."""
    a, w = (te.placeholder(s, "float32", n) for s, n in (((rows, columns), "A"), ((columns,), "W")))
    j = te.reduce_axis((0, columns), "j")
    b = te.compute((rows,), lambda i: te.sum(a[i, j] * w[j] * w[columns - 1 - j], axis=j), "B")
    return te.create_prim_func([a, w, b])


@pytest.mark.parametrize("factor", [False, True])
def test_each_thread_loads_no_copy_of_a_buffer_that_it_reads_at_several_places(
    factor: bool,
) -> None:
    """Each iteration copied all that lies between its places: 815,471 sectors, 1,175 before."""
    outcome = check(at_two_places(12, 20, factor))
    assert outcome.text.startswith("reduction, a thread for each result")


@pytest.mark.parametrize(("rows", "columns"), [(9, 128), (70, 40), (3, 200)])
def test_a_factor_at_two_places_is_no_copy_of_what_lies_between(rows: int, columns: int) -> None:
    check(vector_at_two_places(rows, columns))
