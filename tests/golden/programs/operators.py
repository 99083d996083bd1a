"""Every ready schedule of the package, at small shapes and with some of its knobs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.golden.programs.program import Program
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.tune.space.operator import find_operator, known_operators
from tvm_layout_ext.tune.space.task import Task

__all__ = ["programs"]

Shape = tuple[int, ...]
_SHAPES: dict[str, tuple[Shape, ...]] = {
    "attention": ((1, 2, 1, 70, 200, 64),),
    "attention_biased": ((1, 2, 2, 256, 256, 64),),
    "attention_causal": ((1, 1, 1, 256, 256, 128),),
    "cast_transpose": ((128, 64), (100, 33)),
    "column_sum": ((256, 64), (100, 33)),
    "conv2d": (
        (2, 9, 8, 64, 72, 3, 3),
        (2, 9, 8, 32, 32, 3, 3),
        (2, 16, 16, 24, 32, 3, 3),
        (9, 56, 56, 96, 96, 3, 3),
    ),
    "conv2d_strided": ((2, 9, 8, 64, 72, 3, 3),),
    "depthwise_conv2d": ((2, 9, 8, 24, 3, 3),),
    "elementwise": ((64, 64), (33, 63)),
    "gather_rows": ((50, 33, 64), (7, 20, 33)),
    "gemm": ((128, 128, 64), (33, 20, 17)),
    "gemm_gated": ((200, 136, 72), (16, 136, 72)),
    "gemm_nt": ((128, 128, 64), (70, 8, 64)),
    "gemm_scaled": ((72, 136, 256),),
    "grouped_gemm": ((3, 200, 136, 72),),
    "layer_norm": ((64, 256), (33, 100)),
    "matmul": ((64, 64, 64), (33, 20, 17)),
    "nchw_to_nhwc": ((2, 64, 6, 6), (1, 33, 5, 7)),
    "pad": ((62, 62), (31, 5)),
    "permute": ((2, 3, 4, 64), (2, 5, 3, 7)),
    "ragged_attention": ((3, 4, 2, 200, 150, 64),),
    "ragged_causal": ((3, 2, 2, 150, 200, 128),),
    "rms_norm": ((64, 256), (33, 100)),
    "row_sum": ((64, 256), (33, 100)),
    "slice": ((64, 64), (33, 7)),
    "softmax": ((64, 256), (33, 100)),
    "stencil": ((64, 256), (33, 100)),
    "stream_reduce": ((64, 1024), (8, 768)),
    "transpose": ((96, 64), (33, 47)),
}
#: Knobs beside the default, drawn from the legal ones: of these operators, at the first shape.
_DRAWN = {"stencil": 2, "stream_reduce": 3, "row_sum": 3, "transpose": 4, "matmul": 4}
#: Not these: their counts of a kernel take seconds.
_NOT_SIMULATED = ("matmul", "stencil", "stream_reduce")
_GEMM: dict[str, dict[str, Any]] = {
    **{f"stages-{n}": {"stages": n} for n in (1, 2, 3, 6)},
    **{f"swizzle-{mode}": {"swizzle": mode, "stages": 2} for mode in ("xor", "pad", "none")},
    **{f"tile-k-{k}": {"tile_k": k} for k in (16, 64)},
    **{f"split-k-{n}": {"split_k": n} for n in (2, 4)},
    **{f"cluster-{n}": {"cluster": n} for n in (2,)},
    "unprefetched": {"prefetch": 0},
    "group-1": {"group": 1},
    "warps-4x1": {"warps_m": 4, "warps_n": 1},
    "tile-64x128": {"tile_n": 128, "stages": 2},
}


def _task(name: str, shape: Shape, dtype: str) -> Task:
    return Task(find_operator(name), shape, dtype, architecture("sm_90a"), seed=0)


def _scheduled(name: str, shape: Shape, dtype: str, changes: dict[str, Any]) -> Any:
    task = _task(name, shape, dtype)
    return task.module(_fitting(task) | changes)


def _fitting(task: Task) -> dict[str, Any]:
    """The default where it is legal, or narrower by a fixed draw."""
    default = task.operator.default_config()
    if _is_legal(task, default):
        return default
    return task.space.default() | {name: "none" for name in default if name == "wgmma"}


def _is_legal(task: Task, config: dict[str, Any]) -> bool:
    operator = task.operator
    return operator.check(task.shape, task.dtype, config, task.architecture) is None


def _drawn(name: str, shape: Shape, dtype: str, draw: int) -> Any:
    """A legal configuration; drawn from all combinations, as judging each takes seconds."""
    task = _task(name, shape, dtype)
    rng = random.Random(f"{name} {draw}")
    while True:
        config = {k.name: rng.choice(k.values) for k in task.operator.knobs}
        if _is_legal(task, config):
            return task.module(config)


def programs() -> Iterator[Program]:
    assert sorted(_SHAPES) == known_operators()
    small = {"tile_m": 64, "tile_n": 64}
    for name, changes in _GEMM.items():
        made = partial(_scheduled, "gemm", (128, 128, 256), "float16", small | changes)
        yield Program(f"gemm/{name}", made, int(name in ("stages-3", "swizzle-none", "split-k-2")))
    yield Program("gemm/large-tiles", partial(_scheduled, "gemm", (256, 256, 128), "float16", {}))
    for name, shapes in _SHAPES.items():
        for shape in shapes:
            for number, dtype in enumerate(find_operator(name).dtypes):
                if number > 1 and shape != shapes[0]:
                    continue
                changes = small if name in ("gemm", "gemm_nt") else {}
                size = "x".join(map(str, shape))
                simulated = int(name not in _NOT_SIMULATED and number == 0)
                made = partial(_scheduled, name, shape, dtype, changes)
                yield Program(f"operator/{name}-{size}-{dtype}", made, simulated)
        for draw in range(_DRAWN.get(name, 0)):
            made = partial(_drawn, name, shapes[0], "float32", draw)
            yield Program(f"operator/{name}-drawn-{draw}", made)
