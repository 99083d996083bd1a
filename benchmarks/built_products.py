"""Products in many variants: all are built at once, and timed from a folder, shape after shape."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import tvm

import tvm_layout_ext as tlx
from benchmarks.hopper_check import _seconds
from benchmarks.memory_bound import provenance
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.tune.space.knobs import Config
from tvm_layout_ext.tune.space.operator import find_operator
from tvm_layout_ext.tune.space.space import Space

Shape = tuple[int, ...]
#: Bytes of all weights that take turns, so that they come from memory.
WEIGHTS = 400_000_000


def name_of(shape: Shape, variant: Any) -> str:
    """File of a variant."""
    return f"{'x'.join(map(str, shape))}_{str(variant).replace(' ', '_')}.so"


def export(
    path: Path, name: str, shape: Shape, dtype: str, wishes: Mapping[str, Any] | None
) -> Config:
    """Build an operator's default, changed by wishes, into a library; what its knobs are."""
    os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
    operator, target = find_operator(name), tlx.cuda_target("sm_90a")
    config = Space(operator, shape, dtype, architecture("sm_90a")).default() | dict(wishes or {})
    with target:
        sch = operator.schedule(operator.compute(shape, dtype), config)
    tlx.build(sch, target=target).export_library(str(path))
    return config


def loaded(path: Path) -> Any:
    """The kernel of a library."""
    return tvm.runtime.load_module(str(path))["main"]


def count_wrong(got: Any, want: Any, relative: float, absolute: Any) -> int:
    """Elements of a result, NaN among them, that are further from those in float64."""
    off = (got.double() - want).abs()
    return int((~(off <= relative * want.abs() + absolute)).sum())


def row_of(
    shape: Shape, calls: Mapping[str, Any], wrong: dict[str, int], flops: float
) -> dict[str, Any]:
    """Microseconds of calls, which take turns, and how many results of each of ours are wrong."""
    seconds = _seconds(calls, int(flops))
    us = {name: round(s * 1e6, 2) for name, s in seconds.items()}
    return {"shape": shape, "us": us, "wrong": wrong}


def speeds(calls: Mapping[str, Any], flops: int) -> dict[str, float]:
    """TFLOPS of calls, which take turns."""
    return {name: round(1e-12 * flops / s, 1) for name, s in _seconds(calls, flops).items()}


def main(
    module: str,
    description: str | None,
    shapes: Sequence[Shape],
    variants: Iterable[Any],
    build: Callable[[Path, tuple[Shape, Any]], str],
    run: Callable[[Path, Shape], dict[str, Any]],
) -> None:
    """Build every variant of every shape into a folder, or run and print a row a shape."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--build", type=Path)
    parser.add_argument("--from", type=Path, dest="folder")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", type=int, nargs="*", default=range(len(shapes)))
    given = parser.parse_args()
    chosen = [shapes[i] for i in given.only]
    if given.build:
        given.build.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("spawn")
        jobs = [(shape, variant) for shape in chosen for variant in variants]
        with ProcessPoolExecutor(mp_context=context) as pool:
            made = [pool.submit(build, given.build, job) for job in jobs]
            for job, one in zip(jobs, made, strict=True):
                print(job, one.exception() or one.result(), flush=True)
    rows = []
    for shape in chosen if given.folder else ():
        rows.append(run(given.folder, shape))
        print(json.dumps(rows[-1]), flush=True)
        if given.out:
            given.out.write_text(json.dumps({**provenance(module), "rows": rows}))
