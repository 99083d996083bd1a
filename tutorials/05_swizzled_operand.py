"""
.. _tutorial-swizzled-operand:

Padding, swizzles, and both sides of shared memory
==================================================

Half-precision operands of a matrix product lie in shared memory in rows, are stored along them and
read in patches of 16x16. This tutorial stages such an operand, 128 rows of 32 halves, with plain
rows, with padding and with an XOR swizzle, and counts what each costs on the side of the loads and
on the side of the stores. It ends with counters of an H200.

Needs no GPU; the H200's counters were read before and are in ``benchmarks/results``.
"""

import json
from pathlib import Path

import numpy as np
from tvm import s_tir, te

import tvm_layout_ext as tlx
from tvm_layout_ext.hardware import BANK_BYTES, NUM_BANKS
from tvm_layout_ext.layout import SwizzledSharedLayout
from tvm_layout_ext.layout.placement import bank_text, dense, padded, xor_rows

ROOT = Path(__file__).resolve().parents[1]
ROWS, COLUMNS, VECTOR, WARP = 128, 32, 8, 32
SHAPE = (ROWS, COLUMNS)

######################################################################
# The kernel
# ----------
# One warp stores the operand with 16 bytes, 8 halves, a lane: four lanes fill a row of 64 bytes and
# the warp eight rows. Then it reads patches of 16x16, lane ``l`` half a row of one, from row
# ``l % 16`` and column ``l // 16 * 8``. Those are the addresses that ``ldmatrix`` gets, too.


def operand(mode, store_rows=1):
    """Stage the operand; ``store_rows`` rows are stored by neighbouring lanes before a column."""
    A = te.placeholder(SHAPE, "float16", name="A")
    B = te.compute(SHAPE, lambda i, j: A[i, j], name="B")
    sch = s_tir.Schedule(te.create_prim_func([A, B]))
    read = sch.get_sblock("B")
    i, j = sch.get_loops(read)
    patch_row, i = sch.split(i, [None, 16])
    patch_column, half, lanes = sch.split(j, [None, 2, VECTOR])
    sch.reorder(patch_row, patch_column, half, i, lanes)
    whole = sch.add_unit_loop(patch_row)
    sch.bind(whole, "blockIdx.x")
    sch.bind(sch.fuse(half, i), "threadIdx.x")
    sch.vectorize(lanes)

    tile = sch.cache_read(read, 0, "shared")
    sch.compute_at(tile, whole)
    y, x = sch.get_loops(tile)[-2:]
    y, down = sch.split(y, [None, store_rows])
    x, lanes = sch.split(x, [None, VECTOR])
    sch.reorder(y, x, down, lanes)
    _, thread = sch.split(sch.fuse(y, x, down), [None, WARP])
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(lanes)
    sch.swizzle(tile, 0, mode)
    return sch


######################################################################
# Banks
# -----
# Shared memory has 32 banks of 4 bytes. A warp's request for 16 bytes a lane is served 8 lanes at a
# time, as 8 times 16 bytes are all banks once; two lanes that want different words of one bank cost
# another turn, a *wavefront*. The picture has a number for each vector of 8 halves, the bank at
# which it begins: 8 rows of the operand, as they lie in plain rows.

PICTURE = (8, COLUMNS)
print(bank_text(dense(PICTURE), PICTURE, 16, VECTOR))

######################################################################
# A quarter of a store covers two rows of the picture: 8 different numbers. A quarter of a load goes
# down a column: two numbers, four times each. ``explain`` has the same for the lanes of the real
# kernel, a quarter of a warp in each line.

print(tlx.explain(operand("none")))

######################################################################
# Padding
# -------
# ``"pad"`` lengthens the rows until the columns are free of conflicts, as ``storage_align`` does by
# a factor and an offset that one has to find: here by 8 halves, to 80 bytes.

print(bank_text(padded(PICTURE, VECTOR), PICTURE, 16, VECTOR))

######################################################################
# Every column now has 8 different numbers. But look along two rows: 0 stands in the first at its
# begin and in the second at its end, so that a quarter of a store takes two wavefronts.
#
# No padding mends both. Rows of ``p`` vectors put the two rows of a store into the slots 0 to 3 and
# ``p`` to ``p + 3`` of 8. They are apart only if ``p`` is 4 modulo 8; a column, 0, ``p``, ``2 * p``
# and so on, has all slots only if ``p`` is odd.

VECTORS, SLOTS = COLUMNS // VECTOR, NUM_BANKS * BANK_BYTES // 16
for pitch in range(VECTORS, VECTORS + SLOTS):
    stored = {row * pitch + x for row in range(2) for x in range(VECTORS)}
    read = {row * pitch for row in range(8)}
    slots = [len({at % SLOTS for at in side}) for side in (stored, read)]
    print(f"{16 * pitch} bytes a row: a store meets {slots[0]} of 8 slots, a load {slots[1]}")
    assert slots != [8, 8]

######################################################################
# An XOR instead
# --------------
# A swizzle moves no row; it permutes the vectors within each. Triton's ``(vec, per_phase,
# max_phase)`` for rows of 32 halves is ``(8, 2, 4)``: vectors of 8, the same permutation for 2 rows
# one after the other, as these fill the banks together, and 4 different ones. Vector ``x`` of row
# ``y`` goes to place ``x ^ (y // 2 % 4)``.

print(bank_text(xor_rows(PICTURE, 8, 2, 4), PICTURE, 16, VECTOR))

######################################################################
# Along two rows there are 8 numbers as before, in another order; down a column there are 8, too.
# Seen from the banks, with a vector as one element of 128 bits: who lies where in 128 bytes?

print(SwizzledSharedLayout(1, 2, 4, [1, 0]).render((8, VECTORS), view="bank", element_bits=128))

######################################################################
# Both sides in one table
# -----------------------
# The simulated GPU runs all three, and ``"auto"``, which counts the conflicts of every access and
# takes the cheapest. Wavefronts of all stores and all loads, those over the least, and bytes:

a = np.random.default_rng(0).standard_normal(SHAPE).astype("float16")
HEAD = f"{'':22}{'stores':>8}{'over':>6}{'loads':>8}{'over':>6}{'bytes':>8}"


def count(mode, store_rows=1):
    """Wavefronts and conflicts of both sides, and bytes, from the simulated GPU."""
    report = tlx.simulate(operand(mode, store_rows), a, None, progress=False)
    np.testing.assert_array_equal(report.outputs["B"], a)
    assert not report.hazards
    sides = {x.kind: x for x in report.accesses if x.scope == "shared"}
    both = [(sides[k].wavefronts, sides[k].bank_conflicts) for k in ("store", "load")]
    return (*both[0], *both[1], report.shared_bytes)


counts = {mode: count(mode) for mode in ("none", "pad", "xor", "auto")}
print(HEAD)
for mode, (stores, over_stores, loads, over_loads, size) in counts.items():
    print(f"{mode:22}{stores:8}{over_stores:6}{loads:8}{over_loads:6}{size:8,}")

######################################################################
# Padding has moved conflicts from the loads to the stores, and takes a quarter more memory. The
# swizzle has none and takes no memory, so ``"auto"`` takes it.

assert counts["none"][1] == 0 < counts["none"][3]
assert counts["pad"][3] == 0 < counts["pad"][1]
assert counts["xor"][1] == counts["xor"][3] == 0
assert counts["auto"] == counts["xor"]
print(tlx.explain(operand("xor")))

######################################################################
# Can the stores be mended otherwise?
# -----------------------------------
# If 8 neighbouring lanes store 8 rows of one column, they go the way of the loads.
# ``schedules/gemm.py`` does this for its padded tiles.

down = count("pad", store_rows=8)
print(HEAD)
print(f"{'pad, stored by columns':22}{down[0]:8}{down[1]:6}{down[2]:8}{down[3]:6}{down[4]:8,}")
assert down[1] == down[3] == 0

######################################################################
# What an H200 says
# -----------------
# Nsight Compute counted the wavefronts of that GEMM, for a product of 256x256x256 with tiles of
# 128x128x64, where each operand has rows of 128 bytes. With one stage, tiles are written by plain
# stores (``st``, with those of the result); with three, by asynchronous copies (``ldgsts``).
# ``ldsm`` is ``ldmatrix``.

results = ROOT / "benchmarks" / "results" / "h200_gemm_counters.json"
measured = json.loads(results.read_text())
print(measured["environment"]["gpu"])
print(f"{'':24}{'st':>10}{'ldgsts':>10}{'ldsm':>10}")
for stages in (1, 3):
    for mode in ("none", "pad", "auto"):
        case = f"float16 nt {mode} stages={stages}"
        row = [measured["ncu"][case][name] for name in ("st", "ldgsts", "ldsm")]
        print(f"{mode:8}{stages} stage(s)      " + "".join(f"{value:10,.0f}" for value in row))

######################################################################
# The loads are as simulated. So are the plain stores: stored by columns, the padded tile has no
# conflict. An asynchronous copy is another matter.

ncu = {mode: measured["ncu"][f"float16 nt {mode} stages=3"] for mode in ("none", "pad", "auto")}
times = ncu["pad"]["ldgsts"] / ncu["auto"]["ldgsts"]
print(f"cp.async into padded rows takes {times:.2f} times the wavefronts of swizzled ones")
print("conflicts that the profiler calls so:", ncu["pad"]["ldgsts conflicts"])
assert ncu["auto"]["ldgsts"] == ncu["none"]["ldgsts"] < ncu["pad"]["ldgsts"]
assert ncu["auto"]["ldsm"] == ncu["pad"]["ldsm"] < ncu["none"]["ldsm"]

######################################################################
# Here 8 neighbouring lanes copy 16 bytes into each of 8 padded rows. That meets no bank twice, and
# the profiler calls none of it a conflict; still, an asynchronous copy takes wavefronts for it that
# a plain store does not, and that the simulated GPU does not know of, as it counts such a copy by
# the rules of a store. With a swizzle neighbouring lanes copy neighbouring vectors of a row, and
# the copies take no more than those of plain rows.
