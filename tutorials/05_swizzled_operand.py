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
from tvm_layout_ext.gpu.counts import count_copies
from tvm_layout_ext.gpu.hardware import BANK_BYTES, NUM_BANKS
from tvm_layout_ext.layout import LinearLayout, SwizzledSharedLayout
from tvm_layout_ext.layout.placement import (
    bank_text,
    dense,
    hardware_swizzle,
    of_linear,
    padded,
    xor_rows,
)

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

print(tlx.explain(operand("none")).text())

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
# Every mode in a picture
# -----------------------
# Rows of 32 floats have 128 bytes, so that every element has a bank of its own; the number is that
# bank, 8 rows in each picture, as the mode that stands above puts them. ``sch.swizzle(block, 0,
# mode)`` takes all of these: names, Triton's three numbers, the widths in bytes of the swizzles
# that TMA and ``wgmma`` use, and linear layouts, which say where each bit of the offset lies.

LINE = (8, 32)
PLAIN = [(0, 1 << bit) for bit in range(5)]
diagonal = LinearLayout.from_bases(
    {"offset": [*PLAIN, (1, 1), (2, 2), (4, 4)]}, {"dim0": 8, "dim1": 32}
)
MODES = {
    '"none"': dense(LINE),
    '"pad", here "pad(32, 4)"': padded(LINE, 4),
    '"xor", here (4, 1, 8)': xor_rows(LINE, 4, 1, 8),
    "32": hardware_swizzle(LINE, 32, 32),
    "64": hardware_swizzle(LINE, 64, 32),
    "128": hardware_swizzle(LINE, 128, 32),
    "a LinearLayout, column ^ row": of_linear(diagonal),
}


def banks(placement, rows, columns):
    """Banks of some elements, an array of their own for each row."""
    return placement.offsets([np.array(rows)[:, None], np.array(columns)[None]]) % NUM_BANKS


for name, placement in MODES.items():
    print(f"{name}\n{bank_text(placement, LINE, 32)}\n")

######################################################################
# With 128 the vectors of 4 floats are permuted over the whole row, as with the XOR of Triton's
# numbers. With 64 and 32 a row is cut into panels of so many bytes, which lie one after the other,
# as a TMA box has them; two rows of 64 bytes, four of 32, fill the banks together and have one
# permutation. What does it cost 8 lanes to read 16 bytes each down a column, as ``ldmatrix`` does,
# or along a row, and to read single floats down a column?

print(f"{'':32}{'16 bytes down':>16}{'along':>8}{'floats down':>14}")
costs = {}
for name, placement in MODES.items():
    patches = ((range(8), range(4)), (range(1), range(32)), (range(8), range(1)))
    met = [np.bincount(banks(placement, *patch).ravel()).max() for patch in patches]
    costs[name] = tuple(int(most) for most in met)
    print(f"{name:32}{costs[name][0]:16}{costs[name][1]:8}{costs[name][2]:14}")

assert costs['"none"'] == (8, 1, 8)
assert costs['"pad", here "pad(32, 4)"'] == costs['"xor", here (4, 1, 8)'] == (1, 1, 1)
assert [costs[name] for name in ("32", "64", "128")] == [(1, 4, 1), (1, 2, 1), (1, 1, 1)]
assert costs["a LinearLayout, column ^ row"] == (4, 1, 1)
for placement in MODES.values():
    whole = placement.offsets([np.arange(8)[:, None], np.arange(32)[None]])
    assert len(np.unique(whole)) == 8 * 32

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
print(tlx.explain(operand("xor")).text())

######################################################################
# Can the stores be mended otherwise?
# -----------------------------------
# If 8 neighbouring lanes store 8 rows of one column, they go the way of the loads.
# ``schedules/gemm.py`` does this for padded tiles with rows as short as these.

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
# the profiler calls none of it a conflict. But an asynchronous copy goes by other rules than a
# store: a wavefront writes one row of 128 bytes of shared memory from one line of 128 bytes of
# global memory, vectors whose places both changed alike. The simulated GPU counts by such rules
# (``tvm_layout_ext.gpu.copies``), which give what the profiler counted here:

copies = json.loads((ROOT / "benchmarks" / "results" / "h200_copy_patterns.json").read_text())
for case in copies["cases"]:
    waves = 0
    for request in case["requests"]:
        source, target = (np.array([request[side]]) for side in ("global", "shared"))
        every = np.ones((1, WARP), bool)
        waves += request["requests"] * count_copies(source, target, every).wavefronts
    print(f"{case['case']:32}{waves:8,} counted{case['wavefronts']:8,} on the H200")
    assert waves == case["wavefronts"]

######################################################################
# So a swizzle, which permutes vectors within a row, leaves the copies of plain rows as they were: 4
# wavefronts a request where rows have 128 bytes. Padding shifts rows against the lines that they
# come from, and rows of 64 bytes, half a line each, take 8; neither can be mended by other lanes.
