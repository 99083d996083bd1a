"""
.. _tutorial-coalesced-transpose:

A transpose through Triton's coalesce pass, and through ours
============================================================

Triton tests its coalesce pass on the transpose of 64x64 numbers of single precision. This tutorial
does the same transpose with Triton's rules and with ``auto_coalesce``: which thread holds which
element at each step, and what each request to memory costs. It ends with times of an H200.

Needs no GPU; the times were measured before and are read from ``benchmarks/results``.
"""

import json
import statistics
from pathlib import Path

import numpy as np
from tvm import s_tir
from tvm.script import tirx as T

import tvm_layout_ext as tlx
from tvm_layout_ext.analysis.axis_info import arithmetic as ai
from tvm_layout_ext.analysis.axis_info import values
from tvm_layout_ext.analysis.axis_info.coalescing import MemoryAccess, choose_layout
from tvm_layout_ext.analysis.nest import read_nest
from tvm_layout_ext.gpu.hardware import SECTOR_BYTES
from tvm_layout_ext.ir.annotations import SWIZZLE
from tvm_layout_ext.ir.evaluate import evaluate
from tvm_layout_ext.layout import (
    BlockedLayout,
    DistributedLinearLayout,
    LinearLayout,
    bank_conflicts,
    movement,
    optimal_swizzle,
    scratch_bytes,
    swizzle_conflicts,
    vector_width,
)

ROOT = Path(__file__).resolve().parents[1]
SIDE, ELEMENT_BYTES = 64, 4
TILE = (SIDE, SIDE)
#: Elements from one row and from one column of A to the next, where each access goes.
IN_A, IN_B = (SIDE, 1), (1, SIDE)


def corner(layout, lines=8, width=100):
    """The upper left corner of a layout's picture, thread:register of each element."""
    picture = layout.render(TILE).splitlines()
    return "\n".join(line[:width].rstrip() for line in picture[: lines + 3])


######################################################################
# Where Triton begins
# -------------------
# ``transpose`` in Triton's ``test/TritonGPU/coalesce.mlir`` loads element ``[i, j]`` of a tile from
# ``A + i * stride_a + j`` and stores it to ``B + i + j * stride_b``. Before the pass, all tensors
# have ``#blocked1``: one element a thread, the 32 lanes of a warp down a column. ``+`` marks an
# element that other threads hold, too: the 128 threads are more than a column has elements.

before = BlockedLayout([1, 1], [32, 1], [4, 1], order=[0, 1])
print(corner(before))

######################################################################
# What does the memory see? The lanes of warp 0 make a request together, each for ``vector``
# neighbours, and the hardware moves whole sectors of 32 bytes.


def request(layout, strides, vector):
    """Sectors of warp 0's first request, and the least that its bytes fill."""
    lanes = {"lane": np.arange(32)[:, None], "register": np.arange(vector)}
    at = layout.to_linear(TILE).apply_arrays(warp=0, block=0, **lanes)
    element = at["dim0"] * strides[0] + at["dim1"] * strides[1]
    sectors = np.unique(element * ELEMENT_BYTES // SECTOR_BYTES)
    return len(sectors), len(np.unique(element)) * ELEMENT_BYTES // SECTOR_BYTES


for name, strides in (("load of A", IN_A), ("store of B", IN_B)):
    sectors, least = request(before, strides, vector=1)
    print(f"{name}, 4 bytes a lane: {sectors} sectors a request, least {least}")
assert request(before, IN_A, 1) == (32, 4)

######################################################################
# Down a column, the store is perfect and the load takes a sector for each of its 32 numbers. Along
# a row it would be the other way round. No layout suits both, so Triton gives each its own.
#
# What Triton knows of the addresses
# ----------------------------------
# The pass asks how the addresses run. Pointers and strides are multiples of 16, a range counts up
# by one; the rules of Triton's axis analysis take that through the sums and products, here in the
# order of the test's operations.

COLUMN, ROW = (SIDE, 1), (1, SIDE)
count = values.AxisInfo.of_range(0, SIDE)
i, j = values.expand_dims(count, 1), values.expand_dims(count, 0)
pointer, stride = values.AxisInfo.argument(16), values.AxisInfo.argument(16)


def addresses(along_rows, along_columns):
    """Axis information of ``pointer + along_rows + along_columns``."""
    rows = ai.add_pointer(values.splat(pointer, COLUMN), along_rows, COLUMN, 8 * ELEMENT_BYTES)
    return ai.add_pointer(
        values.broadcast(rows, COLUMN, TILE),
        values.broadcast(along_columns, ROW, TILE),
        TILE,
        8 * ELEMENT_BYTES,
    )


of_load = addresses(ai.apply_binary("mul", i, values.splat(stride, COLUMN), COLUMN), j)
of_store = addresses(i, ai.apply_binary("mul", j, values.splat(stride, ROW), ROW))
print("addresses of the load: ", of_load)
print("addresses of the store:", of_store)

######################################################################
# What Triton chooses
# -------------------
# The longest run of addresses comes first in the order, and a thread takes as much of it as 16
# bytes hold. Then lanes, and then warps, follow in that order.

load = MemoryAccess(of_load, TILE, 8 * ELEMENT_BYTES, is_load=True)
store = MemoryAccess(of_store, TILE, 8 * ELEMENT_BYTES, is_load=False)
triton = {
    name: choose_layout(access, [load, store], num_warps=4)
    for name, access in (("load", load), ("store", store))
}
for layout in triton.values():
    print(corner(layout))

######################################################################
# This is our planner, not Triton; are they the layouts that Triton chooses? The tests of this
# package keep what Triton's compiler said about the same kernel.

golden = json.loads((ROOT / "tests" / "golden" / "triton_golden.json").read_text())
case = next(c for c in golden["cases"] if c.get("name") == "transpose_fp32_64x64_w4")
print("computed by", golden["meta"]["generator"])
for op in case["expected"]["after_coalesce_pass"]:
    said = op["layout"]
    print(op["op"], said)
    names = ("sizePerThread", "threadsPerWarp", "warpsPerCTA", "order")
    assert triton[op["op"]] == BlockedLayout(*(said[name] for name in names))

######################################################################
# Both requests now move four times the bytes in sectors that are full; the instructions are in the
# PTX that Triton made.

for name, strides in (("load", IN_A), ("store", IN_B)):
    vector = max(triton[name].size_per_thread)
    sectors, least = request(triton[name], strides, vector)
    print(f"{name}, {vector * ELEMENT_BYTES} bytes a lane: {sectors} sectors, least {least}")
    assert sectors == least == 16
print(case["expected"]["ptx_global_ops"])

######################################################################
# What that costs Triton
# ----------------------
# The loaded value is in one layout and the stored one in another, so the pass leaves a
# ``convert_layout`` between them (and more around the addresses, which later passes remove). An
# element has to change its warp, which only shared memory can do. Triton lays the tile out there so
# that the writes and the reads of the conversion meet no bank twice.

load_map, store_map = (triton[name].to_linear(TILE) for name in ("load", "store"))
print("conversions after the pass:", case["expected"]["convert_layouts"]["after_coalesce_pass"])
print("conversions in the end:", case["expected"]["convert_layouts"]["final"])
print("the one that stays goes through:", movement(load_map, store_map).value)
print("bytes of shared memory:", scratch_bytes(load_map, store_map, 8 * ELEMENT_BYTES))
swizzle = optimal_swizzle(load_map, store_map, 8 * ELEMENT_BYTES)
print("conflicts:", swizzle_conflicts(swizzle, load_map, store_map, 8 * ELEMENT_BYTES))
triton_tile = swizzle.sublayout(["vector", "bank", "segment"], swizzle.out_names)
triton_tile = triton_tile.flatten_ins("offset")


def slots(tile):
    """The 16-byte slot, of eight in 128 bytes, of each fourth row and column."""
    steps = np.arange(0, 32, 4)
    offset = tile.invert().apply_arrays(dim0=steps[:, None], dim1=steps)["offset"]
    return offset * ELEMENT_BYTES % 128 // 16


print("16-byte slots of elements [0, 0], [0, 4], ...; [4, 0], ...:")
print(slots(triton_tile))

######################################################################
# The same transpose in TIR
# -------------------------
# TIR has loops where Triton has a tile: which thread does what is said by how the loops are split,
# ordered and bound. So ours is a schedule primitive.


@T.prim_func(s_tir=True)
def transpose(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64, 64), "float32")):
    for i, j in T.grid(64, 64):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vj, vi] = A[vi, vj]


a = np.random.default_rng(0).standard_normal(TILE).astype("float32")

######################################################################
# First without staging: one layout for both sides, as Triton's tensors before the pass. The
# simulated GPU counts what its threads really do.


def coalesced(**options):
    """Schedule the transpose, run it on the simulated GPU, and check its result."""
    sch = s_tir.Schedule(transpose)
    outcome = sch.auto_coalesce("B", num_threads=128, **options)
    report = tlx.simulate(sch, a, progress=False)
    np.testing.assert_array_equal(report.outputs["B"], a.T)
    assert not report.hazards
    return sch, outcome, report


_, outcome, direct = coalesced(stage="none")
print(outcome.text)
print(direct)

######################################################################
# Now with it, and 128 threads as Triton's four warps. The outcome says what was chosen.

sch, outcome, staged = coalesced()
print(outcome.path, "-", outcome.text)
print(sch.mod)

######################################################################
# Ours, layout by layout
# ----------------------
# Which layouts are in these loops? A number of a thread or an iteration moves the access by so many
# elements, bit by bit; that is a linear layout already, from register (the loops of a thread),
# lane and warp to the element.


def input_of(loop, bit):
    """Input of the layout that a bit of a loop's number belongs to; a warp has 2**5 lanes."""
    if loop.kind.startswith("threadIdx"):
        return "lane" if bit < 5 else "warp"
    return "block" if loop.kind.startswith("blockIdx") else "register"


def find(kind, buffer):
    """The loops and the access of the only block that loads or stores a buffer."""
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        nest = read_nest(sch, block)
        for access in nest.accesses:
            if (access.kind, access.name) == (kind, buffer):
                return nest.loops, access
    raise LookupError(f"no {kind} of {buffer}")


def layout_of(kind, buffer, strides):
    """The layout, in coordinates of A, in which a buffer is accessed."""
    loops, access = find(kind, buffer)
    zero = {loop.var: np.asarray(0) for loop in loops}

    def element(loop, value):
        offset = int(evaluate(access.offset, {**zero, loop.var: np.asarray(value)}))
        return tuple(offset // s % SIDE for s in strides)

    bases = {"register": [], "lane": [], "warp": [], "block": []}
    for loop in reversed(loops):
        for bit in range((loop.size - 1).bit_length()):
            bases[input_of(loop, bit)].append(element(loop, 1 << bit))
    linear = LinearLayout.from_bases(bases, {"dim0": SIDE, "dim1": SIDE})
    assert linear.is_bijective()
    return DistributedLinearLayout.from_linear(linear)


ours = {"load": layout_of("load", "A", IN_A), "store": layout_of("store", "B", IN_B)}
for name, strides in (("load", IN_A), ("store", IN_B)):
    sectors, least = request(ours[name], strides, 4)
    print(f"{name}: {sectors} sectors a request, least {least}")
    print(corner(ours[name]))
    assert sectors == least
    print()

######################################################################
# Beside Triton's, by what one warp covers in one request and whether the whole maps are equal:


def covers(layout):
    """Rows and columns of A that warp 0 touches in its first request."""
    lanes = {"lane": np.arange(32)[:, None], "register": np.arange(4)}
    at = layout.to_linear(TILE).apply_arrays(warp=0, block=0, **lanes)
    return "x".join(str(len(np.unique(at[dim]))) for dim in ("dim0", "dim1"))


for name in ("load", "store"):
    same = ours[name].to_linear(TILE) == triton[name].to_linear(TILE)
    print(f"{name}: Triton {covers(triton[name])}, ours {covers(ours[name])}, equal: {same}")

######################################################################
# On both sides both choose alike: full rows of 256 bytes, 16 bytes a lane, two rows a request. In
# tiles that are not full, or have shorter rows, we store 128 bytes of a row of B at once: a request
# needs runs of whole sectors, not of whole rows. Triton settles the layouts by the addresses alone,
# and then finds the swizzle that suits them.
#
# The tile in shared memory
# -------------------------
# Triton converts registers to registers, and the scratch memory is the compiler's. Ours is a buffer
# of the program, which a ``cache_read`` made; an annotation of the block that fills it tells the
# pass ``SwizzleSharedMemory`` where the bits of row and column go in it.

blocks = (sch.get(block) for block in sch.get_child_blocks(sch.get_sblock("root")))
text = next(str(b.annotations[SWIZZLE]) for b in blocks if SWIZZLE in b.annotations)
print(SWIZZLE, "=", text)
images = [[(int(offset),) for offset in bits.split(",")] for bits in text.split(";")]
inverse = LinearLayout.from_bases(dict(zip(("dim0", "dim1"), images, strict=True)), ["offset"])
our_tile = inverse.invert()
print(slots(our_tile))

######################################################################
# The algebra compares the two conversions: the widest access that registers and tile allow, how
# many requests that makes for the whole tile, and their conflicts. A transpose turns every register
# vector of one side into lanes of the other, so that no vector serves both. Triton's search
# wants one that does and so ends at single elements. Ours keeps 8 of the 16 bytes that a thread
# brings together, looks for the order of these, and puts up with single elements on the way out.
# Of whole vectors a request would read 2 of 4 words, 16 times, and so half of the banks twice.

for who, layouts, tile in (("Triton", triton, triton_tile), ("ours", ours, our_tile)):
    for side, what in (("load", "written"), ("store", "read")):
        registers = layouts[side].to_linear(TILE)
        width = vector_width(registers, tile, 8 * ELEMENT_BYTES)
        conflicts = bank_conflicts(registers, tile, 8 * ELEMENT_BYTES)
        lanes = f"{width * ELEMENT_BYTES} bytes a lane, {SIDE * SIDE // (32 * width)} requests"
        print(f"{who}: tile {what} with {lanes}, {conflicts} conflicts a phase")
        assert conflicts == 0

######################################################################
# What the simulated GPU counts
# -----------------------------
# The counters of the whole kernel agree: as few sectors as its bytes need, no bank conflict. The
# kernel is unrolled; here its accesses are summed up by what they do.


def summary(report):
    """Counters of all accesses of a kind to a buffer, with vectors of the same width."""
    found = {}
    for access in report.accesses:
        key = f"{access.scope} {access.kind} of {access.buffer}, {access.vector_bytes} bytes a lane"
        more = (access.requests, access.sectors, access.wavefronts, access.bank_conflicts)
        found[key] = np.add(found.get(key, 0), more)
    for key, (requests, sectors, wavefronts, conflicts) in found.items():
        shared = f"{wavefronts} wavefronts, {conflicts} conflicts"
        print(f"  {key}: {requests} requests,", shared if wavefronts else f"{sectors} sectors")
    print(f"  in all {report.sectors} sectors of least {report.ideal_sectors}")


print("without staging:")
summary(direct)
print("with it:")
summary(staged)
assert staged.sectors == staged.ideal_sectors < direct.sectors
assert staged.bank_conflicts == 0

######################################################################
# What an H200 says
# -----------------
# 64x64 elements are too few to measure. These are transposes of large matrices of single precision
# on an H200, timed with CUDA events beside a copy of the same bytes. First the schedules written
# by hand, from ``benchmarks/results/h200_transpose.json``, medians of all rounds:

results = ROOT / "benchmarks" / "results"
measured = json.loads((results / "h200_transpose.json").read_text())
moved = 2 * ELEMENT_BYTES * measured["size"] ** 2
medians = {name: statistics.median(times) for name, times in measured["seconds"].items()}
copy = medians["copy (torch)"]
print(measured["environment"]["gpu"], f"{measured['size']}x{measured['size']}")
for name, seconds in medians.items():
    print(f"{name:34} {moved / seconds / 1e12:5.2f} TB/s, {copy / seconds:.3f} of the copy")

######################################################################
# And ``auto_coalesce`` beside PyTorch and Triton, from ``h200_memory_bound.json``. ``ours`` is the
# primitive alone, without any knob.

measured = json.loads((results / "h200_memory_bound.json").read_text())
row = next(row for row in measured["rows"] if row["name"] == "transpose float32")
(shape, _), *_ = row["tensors"]
print(measured["environment"]["gpu"], "x".join(map(str, shape)), measured["versions"])
fastest_copy = min(t for name, t in row["seconds"].items() if name.startswith("limit"))
for name, rate in row["tb_per_s"].items():
    of_copy = fastest_copy / row["seconds"][name]
    print(f"{name:34} {rate:5.2f} TB/s, {of_copy:.3f} of the fastest copy")
for peer in ("torch.compile", "triton"):
    ratio = row["tb_per_s"]["ours"] / row["tb_per_s"][peer]
    print(f"ours over {peer}: {ratio:.3f}")
