"""The simulated GPU: runs the device functions of a program on NumPy, counts and checks them.

What runs is what TVM's code generator is handed, after the whole lowering, so that every index,
barrier and copy is the one that the GPU would see. No compiler and no driver is needed.

The way of a program
--------------------
``run`` lowers the source and hands the entry function to ``host``, which binds arrays and shapes,
allocates workspace and meets the kernel launches. ``kernel`` compiles a device function once and
runs its grid in *gangs*: some whole blocks at a time, a NumPy lane a thread, 32 to a warp.

Compiling
---------
``places`` says which memory each buffer is a view of. ``expressions`` and ``device`` turn an
expression into a ``code.Code``: a function of (strand, mask), with its *rank*: the same for the
launch, an array fixed for the gang, one number at a time, or anything. Fixed arrays are computed
once a gang; an index that is a fixed array plus a number costs one addition. ``statements`` turns
statements without synchronisation into functions that work with masks, and the rest into a list of
instructions for ``machine``.

Threads
-------
A ``gang.Strand`` is a set of lanes at one place of the program. Where its threads part company
around a barrier or a free loop, it splits; each part has its own program counter and may wait at
its own barrier, so that warps advance independently. The strand furthest behind runs first, and
strands that meet are joined. A barrier opens when no thread of its block can run; threads that
have ended, or a warp that is not all there, are reported.

Memory
------
``memory`` holds bytes with typed views, so that merged shared memory works. ``access`` is one
load, store or atomic of the program: it computes addresses, checks bounds and alignment, counts
(``counters``: pure functions of addresses), checks for races and moves the data. Counts of an
access repeat with the shift of its addresses modulo 128 bytes and are remembered by that.
``local`` does local arrays, ``atomics``, ``warp`` and ``async_copy`` what their names say.

Asynchronous copies
-------------------
``cp.async`` is visible at the latest legal moment: when its issuer has waited for its group. Until
then a read or a write of its destination is an ``async`` hazard, and what is read is poison. Its
source may be read at any time from the issue to the wait. Both ends are covered by one run: the
value is that of the issue, and until the wait a write to the source is an ``async`` hazard; where
it changes the value, the copy brings poison. After the wait a write must be ordered by a barrier,
as after any read, or it is a ``race``. So without hazards the results do not depend on when copies
read (``flights``). Overwriting a buffer that others still read is a ``race``.

Hazards
-------
``findings`` lists each pair of places once, with the first case: buffer, element, threads, the
iteration (values of the serial loops around the access, ``Hazard.iteration``) and, where a
pipelined loop made versions of the buffer, the version (``Hazard.version``; ``versions`` finds them
by the modulo in the index). Of an asynchronous copy, the iteration that issued it is told, too.

Poison
------
Memory that nobody wrote gives values that carry a code of where they came from
(``values``: a second array, or None for the usual case). Poison passes through arithmetic,
``? :`` and shuffles, and is reported where it reaches a global store, an address, the condition of
a statement, or an output. A parameter that the caller leaves out starts as poison; an array that
is given is initialised. A shuffle from a thread that takes no part in it gives poison too.

Races
-----
``races`` keeps the last write and the reads of each location with a time, and a vector clock for
each warp: a barrier orders a block, ``__syncwarp`` a warp, nothing orders two blocks but that both
use atomics. It is exact up to the first race of a location. Equal bits written by several threads
are listed apart. ``tvm_storage_sync("warp")`` orders a warp, although TVM emits nothing for it:
its all-reduce relies on volatile accesses and on warps that stay together. ``__syncwarp`` orders
the whole warp even where only some of its threads are active.

Matrix instructions
-------------------
``matrix_calls`` compiles ``ldmatrix``, ``stmatrix`` and ``mma.sync``, in TVM's legacy spelling and
in that of its PTX table. ``matrix_shapes`` says which lane holds which element, ``matrix_product``
how products are added up and rounded, and by what tolerance a GPU may differ; ``matrix_memory``
moves 8x8 matrices, ``matrix_registers`` reads and writes registers wherever they are,
``matrix_tile_loops`` does the ops that TVM prints as loops. One NumPy product serves all warps of a
gang. ``ldmatrix`` and ``stmatrix`` are kinds of their own in ``Report.accesses``; each matrix is
one phase of 8 rows. Part of a warp alone is a ``divergent`` hazard, and gets poison.

Limits
------
Gangs run one after another: a kernel whose blocks wait for each other does not end, which is
reported as an endless loop. Floating-point results are NumPy's, rounded after each operation, where
a GPU may fuse a multiplication with an addition. Kernels run one after another, also where one is
launched while another runs; what it touches before ``griddepcontrol.wait`` and the other writes is
a ``race``, by whole buffers (``overlap``). What is not
modelled (``wgmma``, ``wmma``, sparse and sub-byte products, mbarriers, TMA, clusters, grid
barriers) raises ``NotModelled`` with its name.
"""

from .report import AccessCounts, Hazard, Report, Site
from .run import simulate

__all__ = ["AccessCounts", "Hazard", "Report", "Site", "simulate"]
