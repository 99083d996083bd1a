"""Rows written into a buffer that is kept, on the simulated GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from tests.models.running import TARGET, fused
from tests.programs.relaxed import relax_module
from tvm_layout_ext import DefaultSchedule, simulate
from tvm_layout_ext.models.imported.rows_in_place import write_rows


def written(
    shape: tuple[int, ...], dim: int, rows: int, dtype: str, in_place: bool = True
) -> tvm.IRModule:
    """A module that writes rows along a dim of its first input."""

    def build(*given: Any) -> Any:
        return write_rows(relax.BlockBuilder.current(), *given, dim, in_place)

    new = (*shape[:dim], rows, *shape[dim + 1 :])
    return relax_module(build, held=shape, at=((rows,), "int64"), new=new, dtype=dtype)


def scheduled(*args: Any) -> Any:
    with TARGET:
        mod = DefaultSchedule()(fused(written(*args)))
    return mod["write_rows"].with_attr("global_symbol", "main")


@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 8, 9, 32]), min_size=1, max_size=4).map(tuple),
    data=st.data(),
    in_place=st.booleans(),
)
def test_rows_are_written_and_nothing_else(
    shape: tuple[int, ...], data: st.DataObject, in_place: bool
) -> None:
    """Of negative places, too; those outside of the buffer write nothing."""
    dim = data.draw(st.integers(0, len(shape) - 1))
    extent = shape[dim]
    places = st.integers(-extent - 2, extent + 1)
    at = np.array(
        data.draw(st.lists(places, min_size=1, max_size=4, unique_by=lambda i: i % extent))
    )
    func = scheduled(shape, dim, len(at), "float32", in_place)
    rng = np.random.default_rng(0)
    held = rng.random(shape, "float32")
    new = rng.random([*shape[:dim], len(at), *shape[dim + 1 :]], "float32")
    out = [] if in_place else [None]
    report = simulate(func, held, at, new, *out, target=TARGET, progress=False)
    wanted = np.moveaxis(held.copy(), dim, 0)
    for place, row in zip(at, np.moveaxis(new, dim, 0), strict=True):
        if -extent <= place < extent:
            wanted[place] = row
    (found,) = report.outputs.values()
    np.testing.assert_array_equal(np.moveaxis(found, dim, 0), wanted)
    assert not report.hazards


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_of_heads_are_moved_in_vectors(dtype: str) -> None:
    code = tvm.compile(scheduled((1, 8, 128, 128), 2, 1, dtype), TARGET).mod.imports[0]
    assert "4*)(new_ptr" in code.inspect_source()
