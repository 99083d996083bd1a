"""The keys of this package's annotations and attributes, each told once."""

from __future__ import annotations

ANNOTATION_PREFIX = "layout_ext."
#: The tuner's note of which value of a knob made a schedule; asks for nothing.
KNOB_PREFIX = "layout_ext.knob."
#: Function attribute that outlives the blocks, whose annotations end at LowerOpaqueBlock.
MARK = "layout_ext.annotated"
#: Attribute of a function that is called between others on one stream, as those of a model.
IN_SEQUENCE = "layout_ext.in_sequence"
#: Attribute of such a function: numbers of the parameters that nothing ever writes, as weights.
CONSTANTS = "layout_ext.constants"
#: Attribute of a function that :func:`tvm_layout_ext.lower` has already taken half-way.
LOWERED = "layout_ext.lowered"
#: Block annotation that asks the pass: ``[num_threads or 0, vector_bytes, stage]``.
COALESCE = "layout_ext.auto_coalesce"
#: Block annotation that tells what was done.
DONE = "layout_ext.coalesced"
#: Block annotation: elements of a vector.
SHIFTED = "layout_ext.shifted"
#: Block annotation: keys of a tile, stages, warpgroups that multiply, blocks that share keys.
ATTENTION = "layout_ext.attention"
#: Annotation of the last block of a chain over rows: seven numbers of a plan, then its blocks.
FUSE_ROWS = "layout_ext.fuse_rows"
#: Block annotation: the numbers of a plan of tiles whose rows begin anywhere.
TURNED = "layout_ext.turned"
#: Annotation of a product whose operands may lose bits, and its value: Triton's name for it in
#: ``tl.dot``. Without it a product of float32 is an exact one, another computation.
INPUT_PRECISION, TF32 = "layout_ext.input_precision", "tf32"
#: Attribute of a module: kinds of products, of which those of float32 may so lose bits.
ALLOW_TF32 = "layout_ext.allow_tf32"
#: Annotation of a block that is a whole kernel: instructions of a thread beside its accesses.
INSTRUCTIONS = "layout_ext.instructions"
#: Annotation of a block that is one tile: the intrinsic that does it, and for a sum the one that
#: clears it first.
TENSOR_CORE = "layout_ext.tensor_core"
#: Block annotation: load what the block fills one step ahead of its use.
PREFETCH = "layout_ext.prefetch"
#: Block annotation: how many versions the buffer that the block writes shall have.
NUM_STAGES = "layout_ext.num_stages"
#: Block annotation: 1 demands asynchronous copies, 0 forbids them; absent, they are taken if legal.
ASYNC_COPY = "layout_ext.async_copy"
#: Its value that demands copies by TMA.
BY_TMA = 2
#: Statement attribute around copies that shall be asynchronous: 1 demands it, 0 allows it.
ASYNC_SCOPE = "layout_ext.async_scope"
#: Annotation of a block that fills a shared buffer; ``swizzle_modes`` says what it may hold.
SWIZZLE = "layout_ext.swizzle"
#: Annotation of a block or function: buffer name, layout, buffer name, layout, ...; or pairs.
FRAGMENT = "layout_ext.fragment"
#: Annotation of the loop bound to ``blockIdx.y``: how many rows of blocks form a group.
RASTERIZE = "layout_ext.rasterize"
#: Block annotation: ``""``, ``evict_first``, ``evict_last`` or ``auto``.
EVICTION_POLICY = "layout_ext.eviction_policy"
#: Its value where the target decides.
AUTO = "auto"
#: Annotation of the loop bound to ``blockIdx.x``: blocks that a multiprocessor should hold.
MIN_BLOCKS = "layout_ext.min_blocks_per_sm"
#: Annotation of a loop bound to a grid axis: neighbouring blocks of a cluster along it. The axis is
#: added, for TVM leaves the annotations of inner bound loops to loops of one iteration.
CLUSTER = "layout_ext.cluster."
#: Annotation of a grid loop: so many neighbouring tiles along it are of a cluster, whose blocks
#: send each other the operand that they share.
MULTICAST = "layout_ext.multicast"
#: Annotation of a loop of steps along K: so many blocks, a cluster, take a part each and add up.
ADD_UP = "layout_ext.add_up"
#: Annotation of a block that is one tile of a warpgroup: the name of its ``wgmma``.
WARPGROUP = "layout_ext.warpgroup"
#: Block annotation of a product by ``mma.sync`` on a GPU that has ``wgmma``: why it is not that.
NOT_WARPGROUPS = "layout_ext.not_warpgroups"
#: Annotation of the loop over consumer warpgroups: how many warpgroups copy for them.
PRODUCERS = "layout_ext.producers"
#: Annotation of the same loop: two warpgroups have tiles of their own, and multiply in turns.
PINGPONG = "layout_ext.pingpong"
#: Annotation of a grid loop: blocks stay and take tile after tile.
PERSISTENT = "layout_ext.persistent"


def asks_for_something(key: str) -> bool:
    """Whether an annotation is ours, and neither a note nor a permission."""
    is_ours = key.startswith(ANNOTATION_PREFIX) and not key.startswith(KNOB_PREFIX)
    return is_ours and key != INPUT_PRECISION
