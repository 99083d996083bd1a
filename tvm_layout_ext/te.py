"""TVM's ``te``, plus what its classic form had and 0.27 lacks: schedules and tensor intrinsics.

``from tvm_layout_ext import te`` is the only change that classic TE code needs. One name of TVM's
is replaced: ``create_prim_func`` also writes down what ``tlx.assume_divisible`` promised. TVM's
other functions and classes are its own, but what functions, and nodes that are made by their class,
refuse is a ScheduleError.

What TensorIR cannot express is refused by a ScheduleError that says what to use instead:
``te.scan``, ``env_threads``, ``prefetch``, a ``vthread`` in a stage inside a kernel, and every
``set_store_predicate`` but ``thread.var.equal(0)`` of a reduction over threads. Not there at all
are ``create_group``, ``rolling_buffer``, ``transform_layout``, ``normalize``, ``Stage.relations``
and ``Stage.iter_var_attrs``; ``s.sch`` gives a TensorIR schedule, which has a ``transform_layout``.
"""

from __future__ import annotations

from inspect import isfunction
from typing import TYPE_CHECKING, Any

from tvm import te as _tvm_te
from tvm.te import *  # noqa: F403

from .schedule import Schedule, Stage, create_schedule
from .schedule.primitives import assume_divisible as _assume_divisible
from .schedule.te import ir_builder
from .schedule.te.expressions import told as _told
from .schedule.te.expressions import told_class as _told_class
from .schedule.te.tensor_intrin import TensorIntrin, decl_tensor_intrin

__all__ = [name for name in dir(_tvm_te) if not name.startswith("_")]
__all__ += [
    "Schedule",
    "Stage",
    "TensorIntrin",
    "create_prim_func",
    "create_schedule",
    "decl_tensor_intrin",
    "ir_builder",
    "thread_axis",
]

globals().update({name: _told(name, it) for name, it in vars(_tvm_te).items() if isfunction(it)})
CommReducer, Reduce = (_told_class(it.__name__, it) for it in (_tvm_te.CommReducer, _tvm_te.Reduce))
thread_axis = _told("thread_axis", _tvm_te.thread_axis)
create_prim_func = _told("create_prim_func", _assume_divisible.create_prim_func)

if TYPE_CHECKING:
    # TVM ships no types, so a checker cannot see what its star import brings.
    def __getattr__(name: str) -> Any: ...
