"""
.. _tutorial-tuning:

Tuning: on no GPU, on one, on many
==================================

A schedule leaves numbers open: tiles, vectors, paddings, versions. The tuner tries them. This
tutorial tunes on the simulated GPU, so that it runs anywhere; with a GPU the same calls measure.
It then tunes a schedule of its own, writes the report, and compiles with what was found.

Needs no GPU. Files go to a temporary folder, or to the one given as ``--out FOLDER``.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import tvm

import tvm_layout_ext as tlx
from tvm_layout_ext import te
from tvm_layout_ext.cli import app

OUT = Path(sys.argv[sys.argv.index("--out") + 1] if "--out" in sys.argv else tempfile.mkdtemp())
LOG = OUT / "log"

######################################################################
# No GPU
# ------
# Operators of ``schedules/`` declare their knobs and which combinations are legal. Trial 0 is the
# default schedule. The simulated GPU runs a few blocks of each candidate and counts; a formula
# makes one number of the counts, and candidates are ranked by it. It is a model, not a time, and
# nothing here calls it one.

result = tlx.tune("transpose", shape=(256, 256), trials=8, runner="simulate", log=LOG)

for record in result.ranking[:3]:
    counted = record.conflict_model
    print(
        f"trial {record.trial}: modelled cost {record.score:,.0f}, "
        f"{counted['bank_conflicts']:,} bank conflicts, {record.config}"
    )
print(f"verified on {result.best.verified_on}")
print(f"{len(result.task.space.legal)} legal configurations, left out before building:")
for rule, count in result.task.space.refused.most_common(3):
    print(f"  {count:6,} {rule}")

######################################################################
# The log has a line for each trial, written at once. The same call goes on from it: what is there
# is not run again, so that an interrupted run loses nothing.

again = tlx.tune("transpose", shape=(256, 256), trials=8, runner="simulate", log=LOG)
print(f"{again.resumed} of {len(again.trials)} trials came from the log")

######################################################################
# On the command line::
#
#     tvm-layout tune transpose --shape 256 256 --trials 8 --runner simulate --log log
#
# ``--strategy replay`` draws candidates at random in place of TVM's evolutionary search with its
# boosted trees: the yardstick for whether a search is worth its while.

######################################################################
# One GPU
# -------
# ``runner="auto"``, the default, measures where there is a CUDA GPU::
#
#     tvm-layout tune transpose --shape 16384 16384 --trials 64 --log log
#
# Candidates are compiled in parallel processes and timed one at a time in a process of its own. One
# that crashes, hangs or gives a wrong result is a failed trial with its reason.
# The best three are timed again in turns before one is named, and compared with NumPy on fresh
# inputs. Each record says how its times were taken: repeats, the state of the L2 cache, the clock.
# Exit codes: 0 done, 1 nothing worked, 2 the input cannot be used, 130 interrupted.

######################################################################
# Many GPUs
# ---------
# A tracker knows the servers; each server has one GPU, on any machine. On one machine start the
# tracker::
#
#     python -m tvm.exec.rpc_tracker --host 0.0.0.0 --port 9190
#
# on each machine with GPUs a server a GPU, here two::
#
#     CUDA_VISIBLE_DEVICES=0 python -m tvm_layout_ext.tune.rpc_server --tracker HOST:9190 --key h200
#     CUDA_VISIBLE_DEVICES=1 python -m tvm_layout_ext.tune.rpc_server --tracker HOST:9190 --key h200
#
# see that they are there, and tune on all of them::
#
#     python -m tvm.exec.query_rpc_tracker --host HOST --port 9190
#     tvm-layout tune gemm --shape 4096 4096 4096 --dtype float16 --trials 512 --log log \
#         --runner rpc --tracker HOST:9190 --key h200
#
# In Python the runner is ``runner="rpc:HOST:9190:h200"``. Servers of one key should have the same
# GPU, as their times are compared. A server that dies is dropped, and its trial is tried elsewhere;
# waiting for a free one, opening a session and sending are not counted as time. A session serves
# many trials; it is given back after a minute without one, or when others wait for the server. RPC
# is neither encrypted nor authenticated: use it in a network that you trust.

######################################################################
# Knobs of one's own
# ------------------
# Any function and any schedule can be tuned. A knob is a name and its values; the schedule is a
# function of a ``tvm.s_tir.Schedule`` and a configuration, one value a knob. Here a matrix is
# turned through shared memory, and the tuner picks the tile and the padding of its rows.

A = te.placeholder((128, 128), "float32", name="A")
B = te.compute((128, 128), lambda i, j: A[j, i] * 2.0, name="B")
turn = te.create_prim_func([A, B])

KNOBS = [tlx.knob("tile", (16, 32), default=32), tlx.knob("offset", range(3), default=0)]


def schedule(sch, config):
    """A tile a block, read along its rows and written along its columns."""
    block = sch.get_sblock("B")
    shared = sch.cache_read(block, 0, "shared")
    i, j = sch.get_loops(block)
    io, ii = sch.split(i, [None, config["tile"]])
    jo, ji = sch.split(j, [None, config["tile"]])
    sch.reorder(io, jo, ii, ji)
    sch.bind(io, "blockIdx.y")
    sch.bind(jo, "blockIdx.x")
    sch.compute_at(shared, jo)
    for outer, inner in ((ii, ji), sch.get_loops(shared)[-2:]):
        _, y = sch.split(outer, [None, 8])
        sch.bind(y, "threadIdx.y")
        sch.bind(inner, "threadIdx.x")
    sch.storage_align(shared, 0, 0, 32, config["offset"])


own = tlx.tune(turn, schedule=schedule, knobs=KNOBS, trials=6, runner="simulate", log=LOG)
for record in own.ranking:
    tile, offset = record.config["tile"], record.config["offset"]
    conflicts = record.conflict_model["bank_conflicts"]
    print(
        f"tile {tile}, offset {offset}: modelled cost {record.score:,.0f}, {conflicts:,} conflicts"
    )
for edge in own.edges():
    print(edge)

######################################################################
# With a tile of 32 and no padding, rows of 32 floats are read along a column, and all 32 lanes meet
# one bank; one float more a row, and each lane has a bank of its own. The model takes the tile of
# 16 all the same: its 64 blocks keep four times as many multiprocessors busy as the 16 blocks of
# the other, and that saves more than its conflicts cost. Whether a GPU agrees, only a GPU can say.
#
# The log has neither the function nor the schedule as Python, but TVM's database in its folder has
# the function and the trace of each trial. So the commands take such records as any others::
#
#     tvm-layout replay log --id ID
#     tvm-layout check log
#     tvm-layout export log --id ID -o turn
#
# What a kernel gives is compared with what the unscheduled function gives on the CPU, as when it
# was tuned.

app(["replay", str(LOG), "--id", own.best.id], standalone_mode=False)

######################################################################
# The report
# ----------
# One page with everything in it: it can be mailed, and needs no network::
#
#     tvm-layout report log -o report.html --png curves
#
# For each workload it has the curve of the best so far, with a red cross for a trial that failed; a
# table of all trials, sorted by the heading one clicks; where default and winner lie under the
# roofs of the GPU; the accesses of both kernels, before and after; how the winner lays out shared
# memory, which lane meets which bank, its pipeline; how many candidates each rule left out; the
# versions and the protocol. Read the accesses first: they say *why* the winner wins.

app(["report", str(LOG), "-o", str(OUT / "report.html")], standalone_mode=False)
page = (OUT / "report.html").read_text()
print(f"{page.count('<section')} workloads in {len(page):,} characters")

######################################################################
# Two logs, say of two versions of a driver, are put beside each other by ``tvm-layout compare OLD
# NEW``. ``tvm-layout check LOG`` times each winner against the default once more, and ends with
# code 1 if one no longer wins: something to run each night.

######################################################################
# Compiling with what was found
# -----------------------------
# Inside ``tlx.ApplyBest`` plain ``tvm.compile`` gives each function the best schedule on record for
# its computation and GPU; it knows computations by what they do, not by their names.


def transpose(rows, columns):
    """The transpose as somebody else wrote it, unscheduled."""
    X = te.placeholder((rows, columns), "float32", name="X")
    Y = te.compute((columns, rows), lambda j, i: X[i, j], name="Y")
    return tvm.IRModule({"main": te.create_prim_func([X, Y]).with_attr("global_symbol", "main")})


target = tlx.cuda_target(result.best.arch)
with tlx.ApplyBest(LOG) as best:
    kernel = tvm.compile(transpose(256, 256), target=target)
print(best.applied[0].text)

######################################################################
# A shape that was never tuned takes the configuration of the nearest one that is legal for it, and
# the logger ``tvm_layout_ext`` says so. ``tlx.apply_best`` is the same step alone, without
# compiling; what it gives can be simulated as anything else.

matrix = np.arange(192 * 96, dtype="float32").reshape(192, 96)
applied = tlx.apply_best(transpose(192, 96), LOG, target)
found = tlx.simulate(applied, matrix, None, target=target)
(turned_back,) = found.outputs.values()
assert (turned_back == matrix.T).all()
print(f"192x96 by the nearest shape: right, {found.bank_conflicts} bank conflicts")

######################################################################
# A kernel that shall run without TVM goes out as a library with a C header and a loader for torch,
# cupy or jax by DLPack; this needs nvcc, and no GPU::
#
#     tvm-layout best log
#     tvm-layout export log --id ID -o transpose256
