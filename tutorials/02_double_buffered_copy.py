"""
.. _tutorial-double-buffered-copy:

A copy with its own row instruction, double buffered
=====================================================

The second classic question about TVM's schedules puts most of them in one program: a 64x64 copy
through shared memory with ``split``, ``reorder``, ``bind``, ``compute_at``, ``tensorize``,
``storage_align`` and ``double_buffer``. In classic TE, the order of the calls on different stages
is free; it is here too.

Needs no GPU.
"""

import numpy as np

import tvm_layout_ext as tlx
from tvm_layout_ext import simulate, te

######################################################################
# An instruction that copies a row
# --------------------------------
# ``te.decl_tensor_intrin`` describes an instruction by the compute that it stands for, here the
# copy of 16 elements, and builds what replaces it. A real one would call hardware with
# ``tvm.tirx.call_extern``; ours does four loads and stores of 16 bytes.

WIDTH = 16


def intrin_row_copy():
    """A tensor intrinsic that copies 16 neighbouring elements, four at a time."""
    X = te.placeholder((WIDTH,), name="X")
    Y = te.compute((WIDTH,), lambda i: X[i], name="Y")

    def implementation(ins, outs):
        ib = te.ir_builder.create()
        for lane in range(0, WIDTH, 4):
            ib.emit(outs[0].vstore([lane], ins[0].vload([lane], "float32x4")))
        return ib.get()

    return te.decl_tensor_intrin(Y.op, implementation, name="row_copy")


######################################################################
# The schedule
# ------------
# One block works through the matrix in tiles of 8 rows. Its 32 threads fill a tile in shared
# memory, each with a quarter of a row by the instruction above, and then write it out, each two
# columns.


def copy_schedule(num_stages):
    """The 64x64 copy with ``num_stages`` versions of its tile."""
    A = te.placeholder((64, 64), name="A")
    B = te.compute((64, 64), lambda i, j: A[i, j], name="B")
    s = te.create_schedule(B.op)
    AA = s.cache_read(A, "shared", [B])
    thread = te.thread_axis("threadIdx.x")

    i, j = B.op.axis
    whole, i = s[B].split(i, nparts=1)
    tile, row = s[B].split(i, factor=8)
    half, column = s[B].split(j, factor=32)
    s[B].reorder(whole, tile, row, half, column)
    s[B].bind(whole, te.thread_axis("blockIdx.x"))
    s[B].bind(column, thread)

    y, x = AA.op.axis
    quarter, lanes = s[AA].split(x, factor=WIDTH)
    s[AA].bind(s[AA].fuse(y, quarter), thread)
    s[AA].tensorize(lanes, intrin_row_copy())
    s[AA].compute_at(s[B], tile)
    s[AA].storage_align(y, 32, 4)
    s[AA].double_buffer(num_stages)
    return s, A, B


######################################################################
# One version
# -----------
# The tile has 8 rows of 64 elements. ``storage_align(y, 32, 4)`` moves the rows 68 elements apart,
# which keeps each of them aligned for 16-byte stores: 544 elements in all. In each turn of the
# loop, the copy waits until the last tile has been written out, and the other way round.

s, A, B = copy_schedule(num_stages=1)
print(s.sch.mod)
single = tlx.lower(s, [A, B]).script()
assert "alloc_shared((544,))" in single

######################################################################
# Two versions
# ------------
# With two versions, the next tile is copied while this one is written out. The loop that you see
# comes from a pass: the first tile is copied before it, and the last is written out after it.

s, A, B = copy_schedule(num_stages=2)
double = tlx.lower(s, [A, B]).script()
print(double)
assert "alloc_shared((1088,))" in double

######################################################################
# Do they compute the same? The simulated GPU says so, and that no thread reads what another has not
# finished writing.

a = np.arange(64 * 64, dtype="float32").reshape(64, 64)
for num_stages in (1, 2):
    s, A, B = copy_schedule(num_stages)
    report = simulate(s, a, args=[A, B], progress=False)
    np.testing.assert_array_equal(report.outputs["B"], a)
    assert not report.hazards
    print(f"{num_stages} versions: {report.shared_bytes} bytes, {report.barriers} barriers")
    print(report.text())

######################################################################
# The CUDA source keeps the 16-byte accesses of the instruction; with two versions they have become
# asynchronous copies, which the loop waits for once and which one barrier makes visible to all.

source = tlx.build(s, [A, B], target="cuda").mod.imports[0].inspect_source()
print(source)
assert "cp.async.cg.shared.global" in source
assert source.count("__syncthreads") == 1
