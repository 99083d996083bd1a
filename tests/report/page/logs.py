"""Records by hand, for the tests of the page."""

from __future__ import annotations

from typing import Any

from tests.tune.helpers import make_model, make_record
from tvm_layout_ext.tune.records.log import Record
from tvm_layout_ext.tune.space.operator import Workload, find_operator

DEFAULT = find_operator("transpose").default_config()
WORKLOAD = Workload("transpose", (256, 256), "float32")


def measured(trial: int, us: float | None, **changes: Any) -> Record:
    """A trial of a transpose on an H200; one without a time failed."""
    fields: dict[str, Any] = {
        "runner": "cuda",
        "device": "NVIDIA H200",
        "workload": WORKLOAD,
        "trial": trial,
        "config": DEFAULT | {"align_offset": trial},
    }
    if us is None:
        fields |= {
            "status": "error",
            "error_class": "WrongResultError",
            "error_text": "It is <b>wrong</b> at (0, 0).",
            "conflict_model": None,
            "smem_bytes": None,
        }
    else:
        seconds = us * 1e-6
        fields |= {
            "times": (seconds,) * 3,
            "median": seconds,
            "spread": 1e-9,
            "tflops": 0.0,
            "gbps": 2 * 4 * 256 * 256 / seconds / 1e9,
            "clock_mhz": 1980.0,
            "l2": "flushed",
            "protocol": {"warm_up": 3},
            "verified_on": str(WORKLOAD),
        }
    return make_record(**(fields | changes))


def transposes() -> list[Record]:
    """Five trials whose order by number is not that by text, and one that failed."""
    times = (9.0, 120.0, None, 30.5, 8.0, 105.0)
    return [measured(trial, us) for trial, us in enumerate(times)]


def modelled(trial: int, cost: float, **config: Any) -> Record:
    """A modelled trial of a small half-precision product."""
    return make_record(
        workload=Workload("gemm", (128, 128, 128), "float16"),
        trial=trial,
        config={"stages": trial + 2} | config,
        conflict_model=make_model(cost),
    )
