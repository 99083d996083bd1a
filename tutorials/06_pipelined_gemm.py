"""
.. _tutorial-pipelined-gemm:

A product of matrices, from one version to a pipeline
=====================================================

A product on tensor cores spends its time waiting for memory unless the next tiles are on their way
while these are multiplied. This tutorial keeps one version of its tiles in shared memory, then two,
then three, then loads fragments ahead, too. Each step has its chart, a GPU's times at the end, and
in between what the simulated GPU says of the three mistakes that are made when it is done by hand.

Needs no GPU; the times were measured before and are in ``benchmarks/results``. With
``--svg FOLDER`` the charts are drawn as well.
"""

import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx

import tvm_layout_ext as tlx
from tvm_layout_ext import te
from tvm_layout_ext.transform.launch.rasterize_blocks import grouped

ROOT = Path(__file__).resolve().parents[1]
M, N, K = 128, 128, 192
TILE, STEP, WARPS, LANES, VECTOR, FRAGMENT = 64, 32, 2, 32, 8, 16

######################################################################
# The schedule
# ------------
# ``use_tensor_core`` splits a product into tiles of the tensor core's instruction, and gives the
# blocks that copy its operands to shared memory, load fragments of them into registers, multiply,
# and store. The rest is ordinary: a block computes 64x64 in steps of 32 along K, by 2x2 warps; all
# of them copy, 16 bytes a thread, into swizzled rows. What this tutorial is about are two lines,
# ``sch.pipeline`` and ``sch.prefetch``.


def product(stages, prefetch=False):
    """Multiply A by the transpose of B, with ``stages`` versions of the tiles."""
    A = te.placeholder((M, K), "float16", name="A")
    B = te.placeholder((N, K), "float16", name="B")
    k = te.reduce_axis((0, K), "k")

    def element(i, j):
        return te.sum(A[i, k].astype("float32") * B[j, k].astype("float32"), axis=k)

    C = te.compute((M, N), element, name="C")
    sch = s_tir.Schedule(te.create_prim_func([A, B, C]).with_attr("global_symbol", "main"))
    tc = sch.use_tensor_core("C", multiples=(TILE, TILE, STEP))

    i, warp_y, m = sch.split(tc.m, [None, WARPS, TILE // WARPS // FRAGMENT])
    j, warp_z, n = sch.split(tc.n, [None, WARPS, TILE // WARPS // FRAGMENT])
    step, inner = sch.split(tc.k, [None, STEP // FRAGMENT])
    sch.reorder(i, j, warp_y, warp_z, step, inner, m, n)
    sch.rasterize(i, j, 2)
    sch.bind(warp_y, "threadIdx.y")
    sch.bind(warp_z, "threadIdx.z")
    for loop in (inner, m, n):
        sch.unroll(loop)

    for fragment in (tc.a_fragment, tc.b_fragment):
        sch.compute_at(fragment, inner)
        for loop in sch.get_loops(fragment)[-2:]:
            sch.unroll(loop)
        if prefetch:
            sch.prefetch(fragment)

    for tile in (tc.a, tc.b):
        sch.compute_at(tile, step)
        sch.swizzle(tile)
        row, column = sch.get_loops(tile)[-2:]
        column, vector = sch.split(column, [None, VECTOR])
        rest, y, z, x = sch.split(sch.fuse(row, column), [None, WARPS, WARPS, LANES])
        for loop, axis in ((y, "threadIdx.y"), (z, "threadIdx.z"), (x, "threadIdx.x")):
            sch.bind(loop, axis)
        sch.unroll(rest)
        sch.vectorize(vector)
    sch.pipeline(step, stages)

    sch.reverse_compute_at(tc.result, warp_z)
    for loop in sch.distribute_epilogue(tc.result):
        sch.unroll(loop)
    return sch


######################################################################
# Two helpers: one runs a product on the simulated GPU, which must find NumPy's result and no
# hazard; one lists what a warp does in an iteration of the loop over K, in its order.

rng = np.random.default_rng(0)
a, b = (rng.standard_normal((rows, K)).astype("float16") for rows in (M, N))
BLOCKS, STEPS = M // TILE * (N // TILE), K // STEP
NAMES = {
    "cp_async_wait_group": "wait",
    "cp_async_commit_group": "commit",
    "cp_async_cg": "copy",
    "tvm_storage_sync": "barrier",
    "ptx_legacy.ldmatrix": "ldmatrix",
    "ptx_legacy.mma": "mma",
}


def checked(sch):
    """Report of the simulated GPU."""
    report = tlx.simulate(sch, a, b, None, progress=False)
    np.testing.assert_allclose(report.outputs["C"], a.astype("f4") @ b.astype("f4").T, atol=1e-3)
    assert not report.hazards
    assert report.bank_conflicts == 0
    each = report.barriers / BLOCKS / STEPS
    print(f"{report.shared_bytes:,} bytes of shared memory, {each:.2f} barriers an iteration")
    return report


def loop_of(sch):
    """What an iteration of the loop over K does, with numbers of repetitions."""
    (kernel,) = tlx.device_program(sch).kernels.values()
    loops, seen = [], []
    tvm_ffi.structural_walk(kernel.body, [(tirx.For, loops.append)])
    (loop,) = (one for one in loops if str(one.extent) == str(STEPS))

    def look(call):
        name = getattr(call.op, "name", "").removeprefix("tirx.").removeprefix("ptx.")
        if name in NAMES:
            seen.append(NAMES[name])

    tvm_ffi.structural_walk(loop.body, [(tvm.ir.Call, look)])
    runs = [(name, len(list(same))) for name, same in itertools.groupby(seen)]
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in runs)


######################################################################
# One version
# -----------
# With one version there is nothing to overlap. A step copies its tiles, waits for all threads,
# multiplies, and waits again before the next step may overwrite the tiles: two barriers.

plain = product(1)
assert checked(plain).barriers == 2 * BLOCKS * STEPS
print(tlx.explain_pipeline(plain).text())
print(loop_of(plain))

######################################################################
# Two versions
# ------------
# Now a step copies the tiles of the next one, and multiplies its own while they travel. The copies
# have become asynchronous, ``cp.async``: they go past the registers, and a thread waits for its own
# by groups, here one group a step. In the chart a column is one body of the loop, a cell the
# iteration that a copy or a product works for, and the version it fills or reads. Body -1 only
# copies.

double = product(2)
assert checked(double).barriers == BLOCKS * STEPS
print(tlx.explain_pipeline(double).text())
print(loop_of(double))

######################################################################
# One barrier is enough, as it comes between the wait and the copies: what is read after it has
# arrived for all threads, and what is overwritten after it was read by all before.
#
# Three versions
# --------------
# With two, the copies of a step have one product's time to arrive. With N versions they have N - 1,
# and the wait lets N - 2 groups stay under way: ``<=1`` in the chart. Any number works, and so does
# a loop that is shorter than the pipeline.

triple = product(3)
assert checked(triple).barriers == BLOCKS * STEPS
chart = tlx.explain_pipeline(triple)
print(chart.text())
assert [c.record.wait for c in chart.charts] == [1]

######################################################################
# Done wrong
# ----------
# What is each part of this loop for? Take it out of the final program, and ask the simulated GPU.
# It delivers an asynchronous copy as late as its wait allows, follows who has met whom at which
# barrier, and names buffer, version and iteration of what went wrong.


def mutated(kind, rule):
    """The three-version program, with a rule applied to all nodes of a kind."""
    program = tlx.device_program(triple)
    kernels = {
        name: kernel.with_body(tvm_ffi.structural_map(kernel.body, [(kind, rule)], order="post"))
        for name, kernel in program.kernels.items()
    }
    return replace(program, kernels=kernels)


def calls(node, name):
    """Whether a statement calls an operator."""
    return isinstance(node.value, tvm.ir.Call) and getattr(node.value.op, "name", "") == name


def deed(hazard):
    """Kind of a hazard, and what its first thread does."""
    verbs = ("reads", "writes", "copies to", "is stored")
    return hazard.kind, next(verb for verb in verbs if f" {verb} " in hazard.message)


def hazards(kind, rule):
    """Print and return what the simulated GPU reports, the first of each sort in full."""
    found = tlx.simulate(mutated(kind, rule), a, b, None, progress=False).hazards
    print(f"{len(found)} pairs of places:")
    for sort in dict.fromkeys(map(deed, found)):
        first = next(hazard for hazard in found if deed(hazard) == sort)
        version = "not known" if first.version is None else first.version
        when = ", ".join(f"{loop} = {value}" for loop, value in first.iteration) or "no loop"
        print(f"  {first.kind}: buffer {first.buffer}, version {version}, in {when}")
        print(f"    {first.message}")
    return found


######################################################################
# A wait that lets one group more stay under way reads tiles that have not arrived. On a GPU this is
# right most of the time, which is what makes it hard to find. What the simulated GPU delivers too
# late is poison, and it says where poison gets to.


def late(node):
    """Let one group more stay under way."""
    if not calls(node, "tirx.ptx.cp_async_wait_group"):
        return node
    call = node.value
    more = [call.args[0] + 1, *call.args[1:]]
    return tirx.Evaluate(tvm.ir.Call(call.op, more, call.attrs, ret_ty=call.ty))


late_found = hazards(tirx.Evaluate, late)
assert "async" in {hazard.kind for hazard in late_found}

######################################################################
# Without the barrier a thread's own copies have arrived, and those of the others may not have: it
# reads what another one copies. Or it still reads what another one, a body ahead, overwrites.


def apart(node):
    """Take out a barrier."""
    return tirx.Evaluate(0) if calls(node, "tirx.tvm_storage_sync") else node


apart_found = hazards(tirx.Evaluate, apart)
assert {deed(hazard) for hazard in apart_found} == {("race", "reads"), ("race", "copies to")}

######################################################################
# Two versions where the plan needs three: a copy lands in the tile that is being multiplied. The
# version is not known, for memory for three no longer has any.


def fewer(node):
    """Count versions modulo 2."""
    return tirx.Mod(node.a, tirx.IntImm("int32", 2)) if int(node.b) == 3 else node


fewer_found = hazards(tirx.Mod, fewer)
assert "async" in {hazard.kind for hazard in fewer_found}

######################################################################
# None of these can be written with ``sch.pipeline``: it takes the number of versions, and the pass
# works out waits, barrier and copies from the statements of the loop. More than fit are refused:

try:
    tlx.lower(product(40))
except tlx.ScheduleError as refusal:
    print(refusal)

######################################################################
# Fragments, too
# --------------
# Shared memory has a latency of its own. The loop over a tile is unrolled in two steps of 16; in
# each, a warp loads fragments by ``ldmatrix`` and multiplies them.

print(loop_of(triple))

######################################################################
# ``sch.prefetch`` loads the fragments of a step while those of the step before are multiplied, into
# registers of their own; the last step of a tile loads the first fragments of the next tile, which
# the barrier must let it see. The copies are shared out over the steps.

ahead = product(3, prefetch=True)
checked(ahead)
print(tlx.explain_pipeline(ahead).text())
print(loop_of(ahead))

######################################################################
# The order of blocks
# -------------------
# ``sch.rasterize`` is about the second-level cache. Blocks that run at the same time share tiles if
# they lie in a square; in the order of their numbers they lie in a long row. Groups of two rows, on
# a grid of 4x4, run in this order:

order = {grouped(row, column, 4, 4, 2): row * 4 + column for row in range(4) for column in range(4)}
print("\n".join(" ".join(f"{order[row, column]:2}" for column in range(4)) for row in range(4)))

######################################################################
# What an H200 says
# -----------------
# The same steps with ``schedules/gemm.py``, which adds an epilogue through shared memory to what
# stands here: 4096x4096x4096, tiles of 128x128x32, TFLOPS and the part of what cuBLAS did in the
# same run. A row that nobody measured is not guessed.

TILES = "tile_m=128 tile_n=128 tile_k=32 warps_m=2 warps_n=2"
STEPS_MEASURED = {
    "one version": ("h200_gemm", f"{TILES} stages=1"),
    "two versions": ("h200_gemm", f"{TILES} stages=2"),
    "three versions": ("h200_gemm", f"{TILES} stages=3"),
    "four versions": ("h200_gemm", f"{TILES} stages=4"),
    "five versions": ("h200_gemm", f"{TILES} stages=5"),
    "six versions": ("h200_gemm", f"{TILES} stages=6"),
    "four, blocks in their own order": ("h200_gemm", f"{TILES} stages=4 group=1"),
    "three and prefetch": ("h200_gemm_prefetch", f"{TILES} stages=3 prefetch=1"),
    "four and prefetch": ("h200_gemm_prefetch", f"{TILES} stages=4 prefetch=1"),
}


def measured(name, config):
    """TFLOPS of a configuration and of cuBLAS in that run, or None where there is no such row."""
    record = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    for group in record["groups"]:
        kind = group.get("type", "float16"), group["layout"], group["shape"]
        if kind == ("float16", "nt", [4096, 4096, 4096]):
            right = (row for row in group["rows"] if not row["error"])
            rows = {row["config"].replace(" prefetch=0", ""): row for row in right}
            if config in rows and "cuBLAS" in rows:
                return rows[config]["tflops"], rows["cuBLAS"]["tflops"]
    return None


for label, (name, config) in STEPS_MEASURED.items():
    found = measured(name, config)
    if found is None:
        print(f"{label:34} not measured: {name}.json has no row {config!r}")
    else:
        print(f"{label:34} {found[0]:6.1f} TFLOPS, {found[0] / found[1]:.2f} of cuBLAS")

######################################################################
# Deeper is not better without end: versions take shared memory, so that fewer blocks fit on a
# multiprocessor, and blocks hide each other's waits as versions do. Nor does the order of blocks
# gain much where both operands fit in the second-level cache anyway. Find the numbers by measuring.
#
# The two files are two runs; compare their rows by the part of cuBLAS, not by TFLOPS.

if "--svg" in sys.argv:
    folder = Path(sys.argv[sys.argv.index("--svg") + 1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, sch in (("two_versions", double), ("three_versions", triple), ("prefetch", ahead)):
        (folder / f"{name}.svg").write_text(tlx.explain_pipeline(sch).svg())
