"""``tvm_layout_ext.te`` is TVM's ``te`` and what its classic form had."""

from __future__ import annotations

import inspect
from inspect import isfunction

from tvm import te as stock

from tests.programs.stages import elementwise
from tvm_layout_ext import te


def test_everything_of_tvms_te_is_there() -> None:
    public = [name for name in dir(stock) if not name.startswith("_")]
    ours = [name for name in public if getattr(te, name) is not getattr(stock, name)]
    # Functions, and two classes of nodes, say what they refuse in a sentence; others are TVM's.
    nodes = ["CommReducer", "Reduce"]
    assert ours == [n for n in public if isfunction(getattr(stock, n)) or n in nodes]
    for name in {*ours} - {
        "create_prim_func",
        *nodes,
    }:  # This one also writes down what was promised.
        assert inspect.unwrap(getattr(te, name)) is inspect.unwrap(getattr(stock, name))
    assert set(public) <= set(te.__all__)


def test_classic_names_are_back() -> None:
    for name in ("create_schedule", "decl_tensor_intrin", "thread_axis", "Schedule", "Stage"):
        assert name in te.__all__


def test_star_import_gives_classic_te() -> None:
    namespace: dict[str, object] = {}
    exec("from tvm_layout_ext.te import *", namespace)
    assert namespace["create_schedule"] is te.create_schedule
    assert namespace["compute"] is te.compute


def test_leaf_iter_vars_are_the_loops_as_they_are_now() -> None:
    _, B, s = elementwise(8, 8, lambda a: a + 1.0)
    outer, inner = s[B].split(B.op.axis[1], 4)
    wanted = [B.op.axis[0], outer, inner]
    found = s[B].leaf_iter_vars
    assert len(found) == 3
    assert all(a.same_as(b) for a, b in zip(found, wanted, strict=True))
