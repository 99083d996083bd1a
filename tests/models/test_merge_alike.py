"""What is computed twice is computed once, and large constants are not read for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tests.models.cpu import require_same
from tests.programs.relaxed import emit, relax_module
from tvm_layout_ext.models.known_values import array_of
from tvm_layout_ext.models.merge_alike import MergeAlike


def calls(mod: tvm.IRModule) -> list[str]:
    bindings = [one for block in mod["main"].body.blocks for one in block.bindings]
    return [one.value.op.name for one in bindings if isinstance(one.value, relax.Call)]


def twice(first: Any, second: Any) -> tvm.IRModule:
    """Two sums of an input with constants, and what is made of both."""

    def build(x: Any) -> Any:
        return op.multiply(emit(op.add(x, first)), emit(op.add(x, second)))

    return relax_module(build, (512, 256), dtype="float32")


def merged(mod: tvm.IRModule) -> tvm.IRModule:
    return tvm.transform.Sequential([MergeAlike()])(mod)


def test_what_reads_one_constant_twice_is_computed_once() -> None:
    constant = relax.const(np.random.default_rng(0).standard_normal((512, 256)).astype("float32"))
    mod = twice(constant, constant)
    after = merged(mod)
    assert calls(mod) == ["relax.add", "relax.add", "relax.multiply"]
    assert calls(after) == ["relax.add", "relax.multiply"]
    assert len(after["main"].params) == 1
    require_same(after, mod, 0)


def test_other_constants_are_not_taken_for_one() -> None:
    values = np.zeros((512, 256), "float32"), np.ones((512, 256), "float32")
    mod = twice(*map(relax.const, values))
    after = merged(mod)
    assert calls(after) == calls(mod)
    require_same(after, mod, 0)


def test_small_constants_are_compared() -> None:
    mod = twice(relax.const(np.float32(2)), relax.const(np.float32(2)))
    assert calls(merged(mod)) == ["relax.add", "relax.multiply"]


def test_a_table_of_unknown_rows_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of an embedding took as long as all else of some layers."""
    read, original = list[Any](), tvm.runtime.Tensor.numpy

    def numpy(tensor: Any) -> Any:
        read.append(tensor)
        return original(tensor)

    monkeypatch.setattr(tvm.runtime.Tensor, "numpy", numpy)
    table = relax.const(np.zeros((1 << 10, 64), "float32"))
    known = relax.const(np.arange(4), "int64")

    def build(given: Any) -> Any:
        return emit(op.take(table, emit(op.add(given, known)), 0))

    cases = ((build, 0), (lambda _: build(known), 3))
    for made, reads in cases:
        mod = relax_module(made, ((4,), "int64"))
        bindings = [one for block in mod["main"].body.blocks for one in block.bindings]
        bound = {one.var: one.value for one in bindings}
        found = array_of(bindings[1].var, bound.get)
        assert (found is not None, len(read)) == (reads > 0, reads)
