"""
Layouts: who holds which element, and in which bank it lies
============================================================

A GPU kernel moves tensors between three homes: global memory, the registers of many threads, and
the banks of shared memory. A *layout* says where in such a home each element lives. This tutorial
shows the layouts of this package side by side, asks them questions, and ends with a transpose
through shared memory that meets no bank conflict.

Nothing here needs a GPU or a kernel.
"""

import pathlib
import sys
import tempfile

import numpy as np

from tvm_layout_ext.layout import (
    BlockedLayout,
    DotOperandLayout,
    NVMMADistributedLayout,
    PaddedSharedLayout,
    SliceLayout,
    SwizzledSharedLayout,
    bank_conflicts,
    movement,
    optimal_swizzle,
    parse,
    swizzle_conflicts,
    wavefronts,
)

# %%
# Blocked
# -------
# The layout for copies and elementwise work. Each thread takes a small box, here 2x2; lanes and
# warps follow each other in the given order. A cell reads thread:register, where the thread is
# 32 * warp + lane.

blocked = BlockedLayout([2, 2], [8, 4], [1, 2], order=[1, 0])
print(blocked.render([16, 16]))

# %%
# A layout is a frozen value with a text form that parses back.

assert parse(repr(blocked)) == blocked

# %%
# Underneath lies a map over F2: a few basis vectors, one for each bit of register, lane and warp
# number. Any element is the XOR of the vectors whose bits are set.

linear = blocked.to_linear([16, 16])
print(linear)
print("warp 1, lane 5, register 3 holds", linear.apply(register=3, lane=5, warp=1, block=0))
print("element (2, 9) is held by", linear.invert().apply(dim0=2, dim1=9))

# %%
# Slice
# -----
# Sum the rows, and each thread is left with the sums of its own two rows. All threads along a row
# hold copies of them, which the picture marks with +.

print(SliceLayout(1, blocked).render([16]))

# %%
# Tensor cores
# ------------
# ``mma.sync`` (version 2) leaves a 16x8 tile in a warp like this. ``wgmma`` (version 3) repeats
# it along its N in registers, and down the rows in its four warps.

mma_v2 = NVMMADistributedLayout([2, 0], [1, 1], [16, 8])
mma_v3 = NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16])
print(mma_v2.render([16, 8]))
print(mma_v3.render([64, 8]))

# %%
# Operand A of half precision lies so. A lane holds two neighbours along K, 32 bits together.

operand_a = DotOperandLayout(0, mma_v2, k_width=2)
print(operand_a.render([16, 16]))

# %%
# The accumulator of one multiplication is the operand of the next in flash attention. Can it stay
# in registers? For 16 columns it can: same lanes, same registers.

accumulator = mma_v2.to_linear([16, 16])
print("accumulator to operand A:", movement(accumulator, operand_a.to_linear([16, 16])).value)

# %%
# Shared memory
# -------------
# A 32x32 tile of single precision, written by rows and read by columns. Plain rows of 32 words put
# a whole column into one bank; ``view="bank"`` shows the banks, 128 bytes a row.

plain = SwizzledSharedLayout(1, 1, 1, order=[1, 0])
padded = PaddedSharedLayout([(32, 1)], order=[1, 0])
swizzled = SwizzledSharedLayout(1, 1, 32, order=[1, 0])

for layout in (plain, padded, swizzled):
    element_to_offset = layout.to_linear([32, 32]).invert()
    column = element_to_offset.apply_arrays(dim0=np.arange(32), dim1=0)["offset"]
    count = wavefronts(4 * layout.padded_offset(column), 4)
    size = 4 * (layout.padded_offset(32 * 32 - 1) + 1)
    print(f"{layout}: wavefronts to read a column: {count}, bytes of the tile: {size}")

# %%
# Padding costs bytes, and rows that no longer begin at multiples of 16; a swizzle costs an XOR.
# The eight-element swizzle that ``ldmatrix`` wants, half precision, as its banks see it:

print(SwizzledSharedLayout(8, 1, 8, order=[1, 0]).render([8, 64], view="bank", element_bits=16))

# %%
# The best swizzle for a transpose
# --------------------------------
# Read a 64x64 tile of half precision by rows, write it by columns, 16 bytes a thread both times.
# No element is a neighbour of another on both sides, so which order in shared memory serves both?

rows = BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0]).to_linear([64, 64])
columns = BlockedLayout([8, 1], [8, 4], [1, 4], order=[0, 1]).to_linear([64, 64])
best = optimal_swizzle(rows, columns, 16)
print("movement:", movement(rows, columns).value)
print("conflicts of the writes and reads:", swizzle_conflicts(best, rows, columns, 16))
print("conflicts without a swizzle:", bank_conflicts(columns, plain.to_linear([64, 64]), 16))
assert swizzle_conflicts(best, rows, columns, 16) == (0, 0)

# %%
# Pictures
# --------
# Text is for the terminal. SVG is for documents, and the HTML page tells the whole story of the
# element one points at. ``python -m tvm_layout_ext layout "Blocked(...)" --shape 16 16`` does the
# same from a shell.

folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="layouts-"))
folder.mkdir(parents=True, exist_ok=True)
pictures = {
    "blocked": (blocked, [16, 16], "tensor"),
    "slice": (SliceLayout(1, blocked), [16], "tensor"),
    "mma_v2": (mma_v2, [16, 8], "tensor"),
    "mma_v3": (mma_v3, [64, 8], "tensor"),
    "operand_a": (operand_a, [16, 16], "tensor"),
    "padded": (padded, [32, 32], "bank"),
    "swizzled": (SwizzledSharedLayout(8, 1, 8, order=[1, 0]), [8, 64], "bank"),
}
for name, (layout, shape, view) in pictures.items():
    bits = 16 if name == "swizzled" else 32
    page = layout.render(shape, kind="html", view=view, element_bits=bits)
    (folder / f"{name}.html").write_text(page)
print(f"{len(pictures)} pages are in {folder}")
