"""
.. _tutorial-register-layouts:

Register tiles that change their layout
=======================================

Loads want neighbouring threads along the rows of A, stores along the rows of B. In a transpose
these are different dimensions, so the threads have to exchange what they hold. By hand that is a
tile in shared memory, a padding, two index computations and two barriers
(:ref:`tutorial-coalesced-transpose`). Here it is two layouts: the compiler writes the exchange.

The kernel casts a matrix to half precision and turns it round, as training in low precision does
with each operand. No GPU is needed.
"""

import numpy as np
from tvm import s_tir

import tvm_layout_ext as tlx
from tvm_layout_ext import te
from tvm_layout_ext.layout import BlockedLayout
from tvm_layout_ext.schedules import cast_transpose
from tvm_layout_ext.simulate import simulate

M, N, TILE = 256, 384, 64
A = te.placeholder((M, N), "float32", name="A")
cast = te.compute((M, N), lambda i, j: A[i, j].astype("float16"), name="cast")
B = te.compute((N, M), lambda j, i: cast[i, j], name="B")
a = np.random.default_rng(0).standard_normal((M, N)).astype("float32")

######################################################################
# Two layouts of one tile
# -----------------------
# 128 threads hold a tile of 64x64. ``loaded`` gives a thread four neighbours of a row of A, 16
# bytes of float32. ``stored`` gives it eight neighbours of a column, 16 bytes of a row of B. A cell
# of the pictures reads thread:register.

loaded = BlockedLayout([1, 4], [2, 16], [4, 1], order=[1, 0])
stored = BlockedLayout([8, 1], [8, 4], [1, 4], order=[0, 1])
print(loaded.render([8, 16]))
print(stored.render([8, 16]))

######################################################################
# One layout for both sides
# -------------------------
# A tile that keeps the layout of the loads needs no exchange. But its stores touch a sector for
# each element.


def scheduled(*layouts: BlockedLayout) -> s_tir.Schedule:
    """Cast in the first layout; each further one is a copy of the tile in that layout."""
    sch = s_tir.Schedule(te.create_prim_func([A, B]).with_attr("global_symbol", "main"))
    block, out = sch.get_sblock("cast"), sch.get_sblock("B")
    j, i = sch.get_loops(out)
    jo, ji = sch.split(j, [None, TILE])
    io, ii = sch.split(i, [None, TILE])
    sch.reorder(io, jo, ji, ii)
    sch.bind(io, "blockIdx.y")
    sch.bind(jo, "blockIdx.x")
    sch.set_scope(block, 0, "local")
    copies = [sch.cache_read(out, 0, "local") for _ in layouts[1:]]
    for tile, layout in zip([*copies, block], reversed(layouts), strict=True):
        sch.compute_at(tile, jo)
        sch.set_fragment_layout(tile, 0, layout)
    return sch


def counted(sch: s_tir.Schedule) -> str:
    """Run the kernel on the simulated GPU, hold it against NumPy, and return the totals."""
    report = simulate(sch, a, None, progress=False)
    np.testing.assert_array_equal(report.outputs["B"], a.T.astype("float16"))
    return report.text().splitlines()[-1]


print("one layout: ", counted(scheduled(loaded)))

######################################################################
# A layout for each side
# ----------------------
# With the second layout both sides move whole vectors. Lowering compares the two layouts, finds
# that elements change their warp, and moves the tile through shared memory. Neither side's vectors
# meet a bank twice there.

both = scheduled(loaded, stored)
print("two layouts:", counted(both))

######################################################################
# What lowering made of it
# ------------------------
# The decisions say how each tile changes its layout.

with tlx.decisions.collect() as made:
    tlx.lower(both)
for one in made:
    print(f"{one.maker}: {one.subject}: {one.text}")

######################################################################
# The schedule that is in the box
# -------------------------------
# ``schedules/cast_transpose.py`` is this kernel with tiles and warps left open for the tuner:
# ``python -m tvm_layout_ext tune cast_transpose --shape 4096 4096``.

config = cast_transpose.OPERATOR.default_config()
print("in the box: ", counted(cast_transpose.schedule([A, B], config)))
