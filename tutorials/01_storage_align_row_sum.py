"""
.. _tutorial-storage-align-row-sum:

Storage alignment: the row sum
==============================

**What does** ``storage_align(axis, 100, 8)`` **mean?** It is the first question that TVM's users
asked about the primitive. This tutorial answers it on a row sum whose input is cached in shared
memory: first in the lowered program, then on a simulated GPU, where the padding pays.

Needs no GPU.
"""

import numpy as np

import tvm_layout_ext as tlx
from tvm_layout_ext import simulate, te

######################################################################
# The computation
# ---------------
# Each element of ``B`` is the sum of a row of ``A``. ``cache_read`` puts a copy of ``A`` between
# the two, in shared memory. This is classic TE code; only the import differs.


def row_sum(rows, columns, scope="shared"):
    """A schedule for the sum of each row of a cached matrix, and its tensors."""
    A = te.placeholder((rows, columns), name="A")
    k = te.reduce_axis((0, columns), "k")
    B = te.compute((rows,), lambda i: te.sum(A[i, k], axis=k), name="B")
    s = te.create_schedule(B.op)
    AA = s.cache_read(A, scope, [B])
    return s, A, B, AA


######################################################################
# Without alignment
# -----------------
# The copy has rows of 1024 elements, one after another: the element ``[ax0, ax1]`` is at
# ``ax0 * 1024 + ax1``.

s, A, B, AA = row_sum(1024, 1024)
plain = tlx.lower(s, [A, B]).script()
print(plain)
assert "ax0 * 1024" in plain
assert "T.alloc_shared((1048576,))" in plain

######################################################################
# With alignment
# --------------
# ``storage_align(axis, factor, offset)`` asks for a stride of ``axis`` that is ``offset`` modulo
# ``factor``, the least one that is not below the length of the row. Here that is the least
# ``s >= 1024`` with ``s % 100 == 8``: 1108. So rows move 1108 elements apart, the last 84 of each
# are unused, and the copy grows to 1024 * 1108 = 1134592 elements.

s[AA].storage_align(AA.op.axis[0], 100, 8)
aligned = tlx.lower(s, [A, B]).script()
print(aligned)
assert "ax0 * 1108" in aligned
assert "T.alloc_shared((1134592,))" in aligned

######################################################################
# It cannot be built for a GPU yet
# --------------------------------
# Nothing in this schedule is bound to a GPU thread. TVM would silently build it for the host;
# ``tlx.build`` says so instead.

try:
    tlx.build(s, [A, B], target="cuda")
except tlx.TargetError as error:
    print(error)

######################################################################
# Bound to threads, it still has to fit. The copy of the whole matrix takes 1134592 * 4 = 4538368
# bytes, and a block of an H200 may have 232448.

block, row = s[B].split(B.op.axis[0], factor=1024)
s[B].bind(block, te.thread_axis("blockIdx.x"))
s[B].bind(row, te.thread_axis("threadIdx.x"))
s[AA].compute_at(s[B], block)
try:
    tlx.build(s, [A, B], target="cuda")
except tlx.TargetError as error:
    print(error)

######################################################################
# A version that fits
# -------------------
# 32 rows of 1024 elements take 131072 bytes. That is more than the 49152 bytes that an array of
# fixed size may have in CUDA, so the copy goes to ``shared.dyn``, memory that is requested at the
# launch. One warp sums the rows, one row a thread: in each step, the 32 threads read one column of
# the copy.


def small_row_sum(align=None):
    """32 rows, one a thread, copied by the same 32 threads."""
    s, A, B, AA = row_sum(32, 1024, "shared.dyn")
    block, row = s[B].split(B.op.axis[0], factor=32)
    thread = te.thread_axis("threadIdx.x")
    s[B].bind(block, te.thread_axis("blockIdx.x"))
    s[B].bind(row, thread)
    s[AA].compute_at(s[B], block)
    _, column = s[AA].split(AA.op.axis[1], factor=32)
    s[AA].bind(column, thread)
    if align is not None:
        s[AA].storage_align(AA.op.axis[0], *align)
    return s, A, B


######################################################################
# The threads of a warp read ``AA[0, k]``, ``AA[1, k]``, ... ``AA[31, k]``. With rows 1024 elements
# apart, all 32 are in the same bank of shared memory, which serves them one after another: 31
# conflicts a step. With ``(32, 1)`` rows are 1025 apart, so that each thread has a bank of its own.
# Note what the classic ``(100, 8)`` does: 1108 is 20 modulo 32, so that the rows use 8 of the
# banks, four rows each, and three threads out of four wait.

a = np.random.default_rng(0).integers(-4, 5, (32, 1024)).astype("float32")
conflicts = {}
for align in (None, (100, 8), (32, 1)):
    s, A, B = small_row_sum(align)
    report = simulate(s, a, args=[A, B], progress=False)
    np.testing.assert_array_equal(report.outputs["B"], a.sum(1))
    assert not report.hazards
    conflicts[align] = report.bank_conflicts
    print(f"align {align}: {report.bank_conflicts} bank conflicts, {report.shared_bytes} bytes")

assert conflicts == {None: 1024 * 31, (100, 8): 1024 * 3, (32, 1): 0}

######################################################################
# The CUDA source shows the padded rows; it needs no GPU either.

source = tlx.build(s, [A, B], target="cuda").mod.imports[0].inspect_source()
print(source)
assert "1025" in source
