"""Programs that load registers from shared memory step by step, and sum them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te

import tvm_layout_ext as tlx

LANES = 32


def row_sums(chunks: Any, steps: int) -> Any:
    """``out[x] = sum over k_0, k_1 of a[k_0, k_1, x]``: chunks of some steps."""
    size = te.var(chunks) if isinstance(chunks, str) else chunks
    a = te.placeholder((size, steps, LANES), "float32", name="a")
    k = [te.reduce_axis((0, extent), f"k_{i}") for i, extent in enumerate((size, steps))]
    out = te.compute((LANES,), lambda x: te.sum(a[k[0], k[1], x], axis=k), name="out")
    return te.create_prim_func([a, out]).with_attr("global_symbol", "main")


def scheduled(
    chunks: Any,
    steps: int,
    stages: int,
    *,
    prefetch: bool = True,
    unroll: bool = True,
    apart: bool = False,
) -> s_tir.Schedule:
    """Chunks go through shared memory in ``stages`` versions, steps through a register.

    If ``apart``, registers are loaded before the first chunk.
    """
    sch = s_tir.Schedule(row_sums(chunks, steps))
    x, ko, ki = sch.get_loops("out")
    sch.reorder(x, ko, ki)
    sch.bind(x, "threadIdx.x")
    if unroll:
        sch.unroll(ki)
    staged = sch.cache_read("out", 0, "shared")
    register = sch.cache_read("out", 0, "local")
    sch.compute_at(register, x if apart else ki)
    sch.compute_at(staged, x if apart else ko, preserve_unit_loops=True)
    rows, lanes = sch.get_loops(staged)[-2:]
    sch.bind(lanes, "threadIdx.x")
    sch.unroll(rows)
    sch.double_buffer(staged, stages)
    if prefetch:
        sch.prefetch(register)
    return sch


def nested() -> s_tir.Schedule:
    """``out[x] = sum of a * b``: a register of a is loaded a step, one of b in a loop inside it."""
    a = te.placeholder((4, LANES), "float32", name="a")
    b = te.placeholder((4, 2, LANES), "float32", name="b")
    k = [te.reduce_axis((0, extent), f"k_{i}") for i, extent in enumerate((4, 2))]
    out = te.compute((LANES,), lambda x: te.sum(a[k[0], x] * b[k[0], k[1], x], axis=k), name="out")
    sch = s_tir.Schedule(te.create_prim_func([a, b, out]).with_attr("global_symbol", "main"))
    x, *loops = sch.get_loops("out")
    sch.reorder(x, *loops)
    sch.bind(x, "threadIdx.x")
    for i, loop in enumerate(loops):
        sch.unroll(loop)
        staged, register = (sch.cache_read("out", i, scope) for scope in ("shared", "local"))
        sch.compute_at(register, loop)
        sch.compute_at(staged, x)
        sch.bind(sch.get_loops(staged)[-1], "threadIdx.x")
        sch.prefetch(register)
    return sch


def simulated(sch: s_tir.Schedule, chunks: int, steps: int) -> Any:
    """Report of the simulated GPU, its output compared with NumPy."""
    a = np.random.default_rng(chunks).standard_normal((chunks, steps, LANES), np.float32)
    report = tlx.simulate(sch.mod, a, np.zeros(LANES, np.float32))
    (got,) = report.outputs.values()
    np.testing.assert_allclose(got, a.astype(np.float64).sum((0, 1)), rtol=1e-4, atol=1e-5)
    return report


def beside(between: str, load: str, *, steps: int = 2, stages: int = 2, copy: int = 1) -> Any:
    """``B[t] += f[0] * g[0]`` for steps of four chunks of A: f holds what ``load`` says of S.

    ``between`` stands between copies and steps and may fill g, as each chunk's own factor;
    ``copy`` tells whether copies may be asynchronous.
    """
    asked = {"layout_ext.num_stages": stages, "layout_ext.async_copy": copy}
    source = f"""
@T.prim_func(s_tir=True)
def main(A: T.Buffer((4, 64), "float32"), W: T.Buffer((4,), "int32"),
         B: T.Buffer((32,), "float32")):
    for x in T.thread_binding(1, thread="blockIdx.x"):
        for t in T.thread_binding({LANES}, thread="threadIdx.x"):
            with T.sblock("all"):
                S = T.sblock_alloc_buffer((64,), scope="shared")
                f = T.sblock_alloc_buffer((1,), scope="local")
                g = T.sblock_alloc_buffer((1,), scope="local")
                g[0] = T.float32(1)
                for k in range(4):
                    for j in T.unroll(2):
                        with T.sblock("S"):
                            T.reads(A[k, j * 32 + t])
                            T.writes(S[j * 32 + t])
                            T.sblock_attr({asked})
                            S[j * 32 + t] = A[k, j * 32 + t]
                    {between}
                    for s in T.unroll({steps}):
                        with T.sblock("f"):
                            T.reads(S[0:64], W[0:4])
                            T.writes(f[0])
                            T.sblock_attr({{"layout_ext.prefetch": 1}})
                            f[0] = S[s % 2 * 32 + {load}]
                        with T.sblock("use"):
                            T.reads(f[0], g[0], B[t])
                            T.writes(B[t])
                            B[t] = B[t] + f[0] * g[0]
"""
    return tvm.script.from_source(source)
