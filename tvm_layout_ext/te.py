"""TVM's ``te``, plus what its classic form had and 0.27 lacks: schedules and tensor intrinsics.

``from tvm_layout_ext import te`` is the only change that classic TE code needs.
"""

from __future__ import annotations

from tvm.te import *  # noqa: F403
from tvm.te import thread_axis

from .schedule import Schedule, Stage, create_schedule

__all__ = ["Schedule", "Stage", "create_schedule", "thread_axis"]
