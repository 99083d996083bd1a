"""TVM's ``te``, plus what its classic form had and 0.27 lacks: schedules and tensor intrinsics.

``from tvm_layout_ext import te`` is the only change that classic TE code needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import te as _tvm_te
from tvm.te import *  # noqa: F403
from tvm.te import thread_axis

from .schedule import Schedule, Stage, create_schedule, ir_builder
from .schedule.tensor_intrin import TensorIntrin, decl_tensor_intrin

__all__ = [name for name in dir(_tvm_te) if not name.startswith("_")]
__all__ += [
    "Schedule",
    "Stage",
    "TensorIntrin",
    "create_schedule",
    "decl_tensor_intrin",
    "ir_builder",
    "thread_axis",
]

if TYPE_CHECKING:
    # TVM ships no types, so a checker cannot see what its star import brings.
    def __getattr__(name: str) -> Any: ...
