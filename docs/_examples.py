"""Examples of the reference: the text after ``# %%`` names what each belongs to; all of them run.

Those whose docstring has an example of its own are not here. The first part is what others use.
"""
# ruff: noqa: E501

# %%
import shutil

import numpy as np
from tvm import s_tir

import tvm_layout_ext as tlx
from tvm_layout_ext import te


def copied(rows=128, columns=128):
    """A transpose through a tile of shared memory."""
    A = te.placeholder((rows, columns), "float32", name="A")
    B = te.compute((columns, rows), lambda j, i: A[i, j], name="B")
    sch = s_tir.Schedule(te.create_prim_func([A, B]).with_attr("global_symbol", "main"))
    j, i = sch.get_loops("B")
    (jo, ji), (io, ii) = sch.split(j, [None, 32]), sch.split(i, [None, 32])
    sch.reorder(jo, io, ji, ii)
    sch.bind(jo, "blockIdx.y")
    sch.bind(io, "blockIdx.x")
    sch.cache_read("B", 0, "shared")
    sch.compute_at("A_shared", io)
    for y, x in ((ji, ii), sch.get_loops("A_shared")[-2:]):
        _, y = sch.split(y, [None, 8])
        sch.bind(y, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
    return sch


def product(m=128, n=128, k=128):
    """A product of halves, B stored N x K, without a schedule."""
    A, B = te.placeholder((m, k), "float16", "A"), te.placeholder((n, k), "float16", "B")
    r = te.reduce_axis((0, k), "k")
    C = te.compute(
        (m, n),
        lambda i, j: te.sum(A[i, r].astype("float32") * B[j, r].astype("float32"), axis=r),
        name="C",
    )
    return s_tir.Schedule(te.create_prim_func([A, B, C]).with_attr("global_symbol", "main"))


# %% tlx.build
kernel = tlx.build(copied(), target=tlx.cuda_target("sm_90a"))
kernel.export_library("transpose.so")  # or kernel(a, b) on a GPU

# %% tlx.lower
print(tlx.lower(copied()).script())

# %% tlx.cuda_source
print(tlx.cuda_source(copied(), target=tlx.cuda_target("sm_80")))

# %% tlx.cuda_target
tlx.build(copied(), target=tlx.cuda_target("sm_90a"))

# %% tlx.default_target
print(tlx.default_target().attrs["arch"])  # this machine's GPU, or sm_90a

# %% tlx.device_program
for name, kernel in tlx.device_program(copied()).kernels.items():
    print(name, kernel.script())

# %% tlx.shared_buffers
for name, kernel in tlx.device_program(copied()).kernels.items():
    print(name, tlx.shared_buffers(kernel))

# %% tlx.explain
found = tlx.explain(copied())
print(found)  # the limit, and what to do; found.text() has every access
assert found.bank_conflicts > 0

# %% tlx.install, tlx.uninstall
tlx.uninstall()  # TVM as it was
tlx.install()

# %% tlx.tune
result = tlx.tune("transpose", shape=(256, 256), trials=2, runner="simulate", log="logs")
print(result.best)

# %% tlx.tune_module, tlx.apply_best
A = te.placeholder((256, 256), "float32", name="A")
B = te.compute((256, 256), lambda j, i: A[i, j], name="B")
mod = s_tir.Schedule(te.create_prim_func([A, B])).mod
print(tlx.tune_module(mod, trials=1, runner="simulate", log="logs"))
fast = tlx.apply_best(mod, "logs")

# %% tlx.export
if shutil.which("nvcc"):
    tlx.export(copied(), "turn")  # libturn.so, turn.h, turn.py and turn.cu

# %% tlx.LayoutError, tlx.ScheduleError, tlx.TargetError, tlx.RecordError, tlx.NotModelled, tlx.SimulationError
try:
    tlx.simulate(copied(), grid_sample=0)  # sizes, schedules, targets, records: a class for each
except (tlx.LayoutError, tlx.ScheduleError, tlx.TargetError, tlx.RecordError) as error:
    print(error)  # one sentence: what is wrong, and what would be legal
except (tlx.NotModelled, tlx.SimulationError) as error:
    print(error)

# %% sch.auto_coalesce
A = te.placeholder((512, 256), "float32", name="A")
B = te.compute((256, 512), lambda j, i: A[i, j], name="B")
sch = s_tir.Schedule(te.create_prim_func([A, B]))
print(sch.auto_coalesce("B"))
assert tlx.simulate(sch, np.ones((512, 256), "float32"), None).bank_conflicts == 0

# %% sch.swizzle
sch = copied()
sch.swizzle("A_shared")  # or mode="xor", "pad", (8, 2, 4)
assert tlx.explain(sch).bank_conflicts == 0

# %% sch.eviction_policy
A = te.placeholder((65536,), "float32", name="A")
B = te.compute((65536,), lambda i: A[i] + 1, name="B")
sch = s_tir.Schedule(te.create_prim_func([A, B]))
sch.auto_coalesce("B")
sch.eviction_policy("B", "evict_first")

# %% sch.use_tensor_core, sch.pipeline, sch.distribute_epilogue, sch.spread_sums
sch = product()
tc = sch.use_tensor_core("C", multiples=(64, 64, 32))  # blocks tc.a, tc.b, tc.a_fragment, tc.result
i, warp_y, m = sch.split(tc.m, [None, 2, 2])
j, warp_z, n = sch.split(tc.n, [None, 2, 2])
step, inner = sch.split(tc.k, [None, 2])
sch.reorder(i, j, warp_y, warp_z, step, inner, m, n)
sch.rasterize(i, j, 2)  # binds both, two rows of blocks at a time
sch.bind(warp_y, "threadIdx.y")
sch.bind(warp_z, "threadIdx.z")
for fragment in (tc.a_fragment, tc.b_fragment):
    sch.compute_at(fragment, inner)
    for loop in sch.get_loops(fragment)[-2:]:
        sch.unroll(loop)
    sch.prefetch(fragment)  # a step of the unrolled loop ahead
for loop in (inner, m, n):
    sch.unroll(loop)
for tile in (tc.a, tc.b):
    sch.cooperative_copy(tile, step, warps=(2, 2))  # by all warps, 16 bytes a thread, swizzled
sch.pipeline(step, 3)  # three versions of both tiles, copied by cp.async
sch.reverse_compute_at(tc.result, warp_z)
for loop in sch.distribute_epilogue(tc.result):  # spread_sums is its older name
    sch.unroll(loop)
assert not tlx.explain(sch).hazards

# %% sch.persistent
sch = product(512, 512, 256)
with tlx.cuda_target("sm_90a"):
    tc = sch.use_tensor_core("C", "wgmma", multiples=(128, 128, 64))
m, warpgroup, piece = sch.split(tc.m, [None, 2, 1])
sch.reorder(m, tc.n, warpgroup, tc.k, piece)
sch.rasterize(m, tc.n, 2)
sch.persistent(m)  # as many blocks as multiprocessors, each takes tile after tile
sch.cluster(m, 2, multicast=True)  # pairs of blocks share a tile of B
for operand in (tc.a, tc.b):
    sch.compute_at(operand, tc.k)
sch.pipeline(tc.k, 3, async_copy="tma")
sch.specialize_warps(warpgroup)  # a third warpgroup copies
sch.reverse_compute_at(tc.result, tc.n)
print(tlx.cuda_source(sch, target=tlx.cuda_target("sm_90a"))[:200])
