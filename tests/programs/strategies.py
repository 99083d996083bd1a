"""Random layouts for hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from tvm_layout_ext import layout as L

RANKS = st.integers(1, 4)


def vectors(sizes: Sequence[int], count: int) -> st.SearchStrategy[list[list[int]]]:
    vector = st.tuples(*(st.integers(0, size - 1) for size in sizes)).map(list)
    return st.lists(vector, min_size=count, max_size=count)


@st.composite
def linear_layouts(draw: st.DrawFn, outs: dict[str, int] | None = None) -> L.LinearLayout:
    names = ["register", "lane", "warp"][: draw(st.integers(1, 3))]
    sizes = outs or {f"dim{i}": 2 ** draw(st.integers(0, 3)) for i in range(draw(RANKS))}
    bases = {n: draw(vectors(list(sizes.values()), draw(st.integers(0, 4)))) for n in names}
    return L.LinearLayout.from_bases(bases, sizes, surjective=False)


@st.composite
def bijections(draw: st.DrawFn, outs: dict[str, int] | None = None) -> L.LinearLayout:
    """A product of elementary matrices, split over one to three input dims."""
    sizes = outs or {"dim0": 2 ** draw(st.integers(0, 4)), "dim1": 2 ** draw(st.integers(0, 4))}
    bits = sum(size.bit_length() - 1 for size in sizes.values())
    columns = [1 << i for i in draw(st.permutations(range(bits)))]
    for i, j in draw(st.lists(st.tuples(st.integers(0, 31), st.integers(0, 31)), max_size=12)):
        if bits and i % bits != j % bits:
            columns[i % bits] ^= columns[j % bits]
    flat = L.LinearLayout.from_bases({"i": [(c,) for c in columns]}, {"o": 2**bits})
    cut = draw(st.integers(0, bits))
    return flat.reshape_outs(sizes).reshape_ins({"register": 2**cut, "lane": 2 ** (bits - cut)})


@st.composite
def splits(draw: st.DrawFn, total: int, rank: int) -> list[int]:
    """Powers of two, one a dim, that multiply to ``total``."""
    sizes = [1] * rank
    while total > 1:
        sizes[draw(st.integers(0, rank - 1))] *= 2
        total //= 2
    return sizes


@st.composite
def clusters(draw: st.DrawFn, rank: int) -> dict[str, list[int]]:
    if draw(st.booleans()):
        return {}
    ctas = draw(splits(2 ** draw(st.integers(0, 3)), rank))
    cuts = [draw(st.sampled_from([2**i for i in range(n.bit_length())])) for n in ctas]
    order = draw(st.permutations(range(rank)))
    return {"ctas_per_cga": ctas, "cta_split_num": cuts, "cta_order": list(order)}


@st.composite
def blocked(draw: st.DrawFn, rank: int | None = None) -> L.BlockedLayout:
    rank = rank or draw(RANKS)
    return L.BlockedLayout(
        draw(splits(2 ** draw(st.integers(0, 4)), rank)),
        draw(splits(32, rank)),
        draw(splits(2 ** draw(st.integers(0, 3)), rank)),
        list(draw(st.permutations(range(rank)))),
        **draw(clusters(rank)),
    )


@st.composite
def mma(draw: st.DrawFn, version: int | None = None) -> L.NVMMADistributedLayout:
    version = version or draw(st.sampled_from([2, 3]))
    warps = [2 ** draw(st.integers(0, 2)), 2 ** draw(st.integers(0, 2))]
    cluster = draw(clusters(2))
    if version == 2:
        return L.NVMMADistributedLayout([2, 0], warps, [16, 8], **cluster)
    columns = 2 ** draw(st.integers(3, 8))
    return L.NVMMADistributedLayout([3, 0], [4 * warps[0], warps[1]], [16, columns, 16], **cluster)


@st.composite
def dot_operands(draw: st.DrawFn) -> L.DotOperandLayout:
    if draw(st.booleans()):
        return L.DotOperandLayout(draw(st.integers(0, 1)), draw(blocked(rank=2)))
    parent = draw(mma())
    index = 0 if parent.version[0] == 3 else draw(st.integers(0, 1))
    return L.DotOperandLayout(index, parent, 2 ** draw(st.integers(0, 3)))


@st.composite
def slices(draw: st.DrawFn) -> L.SliceLayout:
    parent = draw(st.one_of(blocked(rank=3), mma(), dot_operands()))
    return L.SliceLayout(draw(st.integers(0, parent.rank - 1)), parent)


@st.composite
def swizzled(draw: st.DrawFn, rank: int | None = None) -> L.SwizzledSharedLayout:
    rank = rank or draw(RANKS)
    vec, per_phase, max_phase = (2 ** draw(st.integers(0, 4)) for _ in range(3))
    order = list(draw(st.permutations(range(rank))))
    return L.SwizzledSharedLayout(vec, per_phase, max_phase, order, **draw(clusters(rank)))


@st.composite
def padded(draw: st.DrawFn) -> L.PaddedSharedLayout:
    rank = draw(RANKS)
    intervals = draw(st.lists(st.integers(0, 8), min_size=1, max_size=3, unique=True))
    pairs = [(2**i, 2 ** draw(st.integers(0, 4))) for i in intervals]
    order = list(draw(st.permutations(range(rank))))
    return L.PaddedSharedLayout(pairs, order, **draw(clusters(rank)))


@st.composite
def nvmma_shared(draw: st.DrawFn) -> L.NVMMASharedLayout:
    rank = draw(st.integers(2, 3))
    return L.NVMMASharedLayout(
        draw(st.sampled_from([0, 32, 64, 128])),
        draw(st.sampled_from([8, 16, 32, 64])),
        rank,
        draw(st.booleans()),
        **draw(clusters(rank)),
    )


def distributed() -> st.SearchStrategy[L.Layout]:
    return st.one_of(blocked(), mma(), dot_operands(), slices())


def shared() -> st.SearchStrategy[L.Layout]:
    return st.one_of(swizzled(), padded(), nvmma_shared())


@st.composite
def shapes(draw: st.DrawFn, rank: int) -> list[int]:
    return [2 ** draw(st.integers(0, 7 if rank < 3 else 4)) for _ in range(rank)]
