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
from tests.programs.relaxed import emit, relax_module
from tvm_layout_ext import DefaultSchedule, simulate
from tvm_layout_ext.models.imported.rows_in_place import write_rows
from tvm_layout_ext.models.relax_values import name_of


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


def _made(how: str) -> tvm.IRModule:
    """A cache to which rows are written that are computed before, and perhaps read again."""
    op = relax.op

    def build(held: Any, at: Any, new: Any, other: Any) -> Any:
        builder = relax.BlockBuilder.current()
        beside = None
        rows = emit(op.permute_dims(op.strided_slice(new, [2], [1], [4]), [0, 2, 1, 3]))
        if how == "sum":
            rows = emit(op.sum(emit(op.reshape(rows, (1, 3, 2, 16, 1))), -1))
        if how == "cache":  # What is written is computed of another cache, which is written first.
            first = emit(op.strided_slice(other, [2], [0], [2]))
            beside = write_rows(builder, other, at, rows, 2)
            rows = emit(op.add(first, first))
        out = write_rows(builder, held, at, rows, 2)
        beside = rows if how == "read" else beside
        return out if beside is None else relax.Tuple([out, beside])

    cache = (1, 3, 9, 16)
    return relax_module(
        build, held=cache, at=((2,), "int64"), new=(1, 2, 5, 16), other=cache, dtype="float32"
    )


def test_what_makes_rows_writes_them() -> None:
    with TARGET:
        mod = DefaultSchedule()(fused(_made("slice")))
    (call,) = (one.value for block in mod["main"].body.blocks for one in block.bindings[:1])
    assert name_of(call) == "call_tir_inplace"
    (func,) = (one for one in mod.functions.values() if isinstance(one, tvm.tirx.PrimFunc))
    rng = np.random.default_rng(0)
    held, new = (rng.random(shape, "float32") for shape in ((1, 3, 9, 16), (1, 2, 5, 16)))
    values = {"int64": np.array([7, 2]), 9: held, 5: new}
    arrays = [
        values[str(one.dtype)] if str(one.dtype) == "int64" else values[int(one.shape[2])]
        for one in func.params
    ]
    report = simulate(
        func.with_attr("global_symbol", "main"), *arrays, target=TARGET, progress=False
    )
    wanted = held.copy()
    wanted[:, :, [7, 2]] = new[:, :, 1:4].transpose(0, 2, 1, 3)
    (found,) = report.outputs.values()
    np.testing.assert_array_equal(found, wanted)
    assert len(report.launches) == 1


@pytest.mark.parametrize("how", ["sum", "cache", "read"])
def test_other_rows_are_made_before(how: str) -> None:
    mod = fused(_made(how))
    calls = [one.value for block in mod["main"].body.blocks for one in block.bindings]
    last = next(one for one in reversed(calls) if name_of(one) == "call_tir_inplace")
    assert last.args[0].name_hint.startswith("write_rows")
