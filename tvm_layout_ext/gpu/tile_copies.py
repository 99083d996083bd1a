"""How a product's threads share out the rows of a tile, so that no access meets a bank twice."""

from __future__ import annotations

from dataclasses import dataclass

from .hardware import BANK_BYTES, WARP_SIZE


@dataclass(frozen=True)
class Copy:
    """How threads copy a tile to shared memory.

    Under a swizzle, and where rows are multiples of 128 bytes, neighbouring lanes copy neighbouring
    vectors. Other padded rows need more: a quarter of a warp (a half, for 8-byte accesses) must
    meet each bank once, whether it writes the tile or reads fragments from it, so it has to write
    as many rows as it reads.

    * ``ldmatrix`` reads 8 rows of 16 bytes: a pad of 16 bytes, and phases of 8 rows.
    * Plain loads of 32-bit elements read 4 rows of 8: a pad of 32 bytes, and phases of 4 rows by
      2 neighbouring vectors.
    * Plain loads of 8-bit elements read every fourth of 16 rows: a pad of 8 bytes, which leaves
      vectors of 8 bytes, and phases of 16 rows.

    An asynchronous copy takes a wavefront for each pair of a global line and a shared row of 128
    bytes. So it moves whole rows, and costs least where these have 128 bytes and are swizzled.

    ``vector`` and ``pad`` count elements; a phase has ``rows`` of ``neighbours`` vectors.
    """

    vector: int
    pad: int = 0
    rows: int = 1
    neighbours: int = 1


def copy_of(bits: int, k_major: bool, row: int, swizzle: str) -> Copy:
    """Choose the copy of an operand whose rows in global memory have ``row`` elements."""
    width, pad, rows, neighbours = 16, 0, 1, 1
    if swizzle == "pad":
        if k_major or bits == 16:
            pad, rows = 16, 8
        elif bits == 32:
            pad, rows, neighbours = 32, 4, 2
        else:
            width, pad, rows = 8, 8, 16
    vector = width * 8 // bits
    while row % vector:
        vector //= 2
    return Copy(vector, pad * 8 // bits, rows, neighbours)


def dealt(vectors: int, size: int, gap: int) -> tuple[int, int, int]:
    """Deal rows to lanes that read them, so that no phase of a request meets a bank twice.

    Phases that lie in one row meet none. Where rows are shorter, as many as fill a phase are taken
    so far apart that they lie side by side in the banks; some lanes of a ragged row stay idle.

    A row has ``vectors`` of ``size`` bytes and is shifted by ``gap`` bytes against the banks. The
    result is the lanes for a row, the rows of a phase, and how far apart these are in rows.
    Rows of 16 vectors; of 25 vectors of 4 bytes; of 3 vectors of 16 bytes:

    >>> dealt(16, 16, 16), dealt(25, 4, 16), dealt(3, 16, 32)
    ((16, 1, 1), (32, 1, 1), (4, 2, 2))
    """
    phase = WARP_SIZE * BANK_BYTES // max(size, BANK_BYTES)
    if vectors > phase // 2:
        return -(-vectors // phase) * phase, 1, 1
    across = max(1 << (vectors - 1).bit_length(), gap // max(size, BANK_BYTES))
    return across, phase // across, max(1, across * size // gap)
