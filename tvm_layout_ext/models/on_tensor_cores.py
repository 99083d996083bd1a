"""The rule for products: tensor cores, by tiles and slices that are modelled to be the fastest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import ceil, prod
from typing import Any

from tvm import DataType, s_tir, tirx
from tvm.target import Target

from ..analysis.contraction import Contraction, Operand
from ..errors import ScheduleError
from ..gpu.hardware import Architecture, architecture
from ..ir.queries import USUAL_BATCH
from ..schedules import _gemm_hopper, gemm
from ..schedules._generic import check_product
from ..schedules._split_k import SLICES, cycles
from ..target import target_arch
from ..tune.space.knobs import Config
from ..tune.space.off_tensor_cores import off_tensor_cores
from .any_size.any_rows import FEW, MANY, MOST_FEW, of_any_rows
from .any_size.pixels import has_windows, of_any_pixels, usual
from .any_size.whole_tiles import TILE, whole_tiles
from .convolutions.groups_as_batch import groups_as_batch
from .products import ModelProduct, asked_products, batch_of, scheduled_products
from .rule import REFUSALS, Scheduled, few_or_many

#: Tiles that are tried, of equals the first. Of 24 configurations timed on an H200 the first was
#: the fastest of full machines and the others of small grids (``h200_split_k.json``): 1024^3 takes
#: 9.5 us by the second and 12.1 by the first, 1024x4096x4096 102.7 and 80.4.
TILES = (
    {"tile_m": 128, "tile_n": 128, "tile_k": 32, "stages": 4},
    {"tile_m": 64, "tile_n": 128, "tile_k": 64, "stages": 4},
    {"tile_m": 128, "tile_n": 64, "tile_k": 64, "stages": 3},
    {"tile_m": 64, "tile_n": 64, "tile_k": 64, "stages": 4},
)
#: The configuration where columns or terms are symbolic, too: few or many, tiles are small.
_OF_ANY_SIZE = gemm.OPERATOR.default_config() | {
    **dict.fromkeys(("tile_m", "tile_n", "tile_k"), TILE),
    "group": 1,
    "split_k": 1,
}
#: Types of sums that ``wgmma`` has here; in ``float16`` it rounds more than what was written.
_SUMS = ("float32", "int32")
#: Parameters of a product alone, and what a tile may cost that others can be read beside in pairs.
_OPERANDS, _EVEN = 3, 1.1
#: How many times the cycles of sums in slices those of whole ones may take by ``wgmma``, which has
#: no slices of a symbolic number of rows; above that ``mma.sync`` has them. Of 64 rows by 2048 x
#: 5632 whole ones took 10 us, and ``mma.sync`` 12 without what adds up (H200).
_SLICES_GAIN = 2.0
#: Share of the cycles of an earlier choice that a later one may take at most.
_BETTER = 0.95


def by_warpgroups(func: tirx.PrimFunc, target: Target) -> Scheduled | None:
    """The same as :func:`on_tensor_cores` by ``wgmma``; None where it is not legal."""
    arch, func = architecture(str(target.attrs["arch"])), groups_as_batch(func)
    if has_windows(func):
        return of_any_pixels(func, arch, partial(_windows, arch)) if arch.name == "sm_90a" else None
    whole = whole_tiles(func)
    if whole is not None and whole.counts:
        return _of_any_rows(func, arch) if arch.name == "sm_90a" else None

    def multiply(sch: s_tir.Schedule, name: str, product: ModelProduct) -> str | None:
        after = _gemm_hopper.work_after(sch, name)
        may_swap = _gemm_hopper.may_swap(product.what, func.params[-1])
        config = _wgmma(product.what, arch, len(func.params) > _OPERANDS, after, may_swap)
        return _by(sch, name, product.what, config, config["wgmma"]) if config else None

    return scheduled_products(func, multiply, _refuse)


def on_tensor_cores(func: tirx.PrimFunc, target: Target) -> Scheduled | None:
    """Schedule the products of a function by ``mma.sync``, and coalesce what else it has.

    None if it has no product, or one of a single row or column, which is a sum. ScheduleError if a
    product cannot go to tensor cores.
    """
    func = groups_as_batch(func)
    arch, whole = architecture(str(target.attrs["arch"])), whole_tiles(func)
    count = None if whole is None else whole.rows
    if count is None:
        return _of_rows(func, arch, 0)
    few, many = (_of_rows(func, arch, rows) for rows in (FEW, MANY))
    return few and many and few_or_many(count, MOST_FEW, few, many)


def _of_rows(func: tirx.PrimFunc, arch: Architecture, rows: int) -> Scheduled | None:
    """The same by one kernel, whose tiles are for so many rows where these alone are symbolic."""

    def multiply(sch: s_tir.Schedule, name: str, product: ModelProduct) -> str:
        what, config = product.what, _chosen(product, arch)
        if product.has_any_size and rows and _has_only_rows_of_any_size(sch, name, what):
            extents = dict(enumerate(what.extents)) | dict.fromkeys(what.rows, 1)
            extents[what.rows[-1]] = rows
            of_rows = replace(what, extents=tuple(extents.values()))
            config = configuration(of_rows, arch, sliced=rows == FEW, tile_m=TILE)
        return _by(sch, name, what, config, "x".join(str(config[f"tile_{dim}"]) for dim in "mnk"))

    return scheduled_products(func, multiply, _refuse)


def _chosen(product: ModelProduct, arch: Architecture) -> dict[str, Any]:
    """The configuration of a product; ScheduleError where tensor cores do not multiply it."""
    what = product.what
    if product.has_any_size:
        return _OF_ANY_SIZE
    windows = what.a.is_window and sum(what.extents[i] > 1 for i in what.depth) > 1
    return configuration(what, arch, windows)


def multiplies(func: tirx.PrimFunc) -> bool:
    """Whether :func:`on_tensor_cores` takes a function of a product; what ``wgmma`` does is legal.

    That is asked for the target around, and nothing is scheduled.
    """
    try:
        asked = asked_products(groups_as_batch(func), _refuse)
        for product in asked.products.values() if asked else ():
            _chosen(product, architecture(target_arch(func)))
    except REFUSALS:
        return False
    return asked is not None


def _windows(arch: Architecture, func: tirx.PrimFunc, pixels: int) -> Scheduled | None:
    """A convolution of known sizes in whole sums, by a tile for others."""

    def multiply(sch: s_tir.Schedule, name: str, product: ModelProduct) -> str | None:
        what = usual(product.what, pixels)
        config = _wgmma(what, arch, len(func.params) > _OPERANDS) if what.a.is_window else {}
        return _in_whole_sums(sch, name, what, config)

    return scheduled_products(func, multiply, _refuse)


def _of_any_rows(func: tirx.PrimFunc, arch: Architecture) -> Scheduled | None:
    """Few rows, and many, by ``wgmma``, else few by ``mma.sync``.

    None where more than rows is symbolic.
    """

    def known(of_rows: tirx.PrimFunc, rows: int) -> Scheduled | None:
        def multiply(sch: s_tir.Schedule, name: str, product: ModelProduct) -> str | None:
            after = _gemm_hopper.work_after(sch, name)
            reads_more = len(func.params) > _OPERANDS
            config = _wgmma(product.what, arch, reads_more, after, any_rows=rows == FEW)
            return _in_whole_sums(sch, name, product.what, config)

        return scheduled_products(of_rows, multiply, _refuse)

    return of_any_rows(func, arch, known, lambda: _of_rows(func, arch, FEW))


def _has_only_rows_of_any_size(sch: s_tir.Schedule, name: str, what: Contraction) -> bool:
    iterators = sch.get(sch.get_sblock(name)).iter_vars
    others = (*what.batch, *what.columns, *what.depth)
    return all(isinstance(iterators[i].dom.extent, tirx.IntImm) for i in others)


def _refuse(func: tirx.PrimFunc) -> None:
    if refused := off_tensor_cores(func):
        raise ScheduleError(next(iter(refused.values())))


def _by(sch: s_tir.Schedule, name: str, what: Contraction, config: Config, tile: str) -> str:
    """Multiply by a configuration, and say so."""
    config = {**gemm.OPERATOR.default_config(), **config}
    gemm.multiply(sch, name, config)
    rounded = " as tf32" if what.tf32 else ""
    return f"on tensor cores{rounded}, tiles of {tile}, {config['split_k']} slices of K"


def _in_whole_sums(sch: s_tir.Schedule, name: str, what: Contraction, config: Config) -> str | None:
    """Multiply by a tile of warpgroups, if there is one, without slices of K."""
    if not config:
        return None
    whole = {"wgmma": config["wgmma"], "split_k": 1}
    return _by(sch, name, what, whole, config["wgmma"])


def configuration(
    product: Contraction,
    arch: Architecture,
    windows: bool = False,
    *,
    sliced: bool = True,
    tile_m: int = 0,
) -> dict[str, Any]:
    """The legal configuration of the fewest modelled cycles; ScheduleError if none is legal.

    Windows have small tiles, for places in them take registers, and whole sums, for a slice of K
    hides from the copies which elements are neighbours. If ``tile_m`` is given, all tiles have as
    many rows; without ``sliced`` sums are whole, too.
    """
    batch = batch_of(product)
    best, least, why = None, float("inf"), ""
    for config in _configurations():
        if windows and (config["tile_n"] > 64 or config["split_k"] > 1):
            continue
        if config["tile_m"] != (tile_m or config["tile_m"]):
            continue
        if config["split_k"] > 1 and not sliced:
            continue
        refusal = _refusal(product, config, arch)
        if refusal:
            why = why or refusal
            continue
        m, n, k = product.sizes
        # Tiles of a batch are not shared by its members.
        rows = batch * ceil(m / config["tile_m"]) * config["tile_m"]
        found = cycles((rows, n, k), config, config["split_k"], product.operand)
        if found < _BETTER * least:
            best, least = config, found
    if best is None:
        raise ScheduleError(f"No tile is legal for its product: {why}")
    return best


def _wgmma(
    product: Contraction,
    arch: Architecture,
    reads_more: bool,
    after: float = 0,
    may_swap: bool = False,
    any_rows: bool = False,
) -> dict[str, Any]:
    """The tile of warpgroups of the fewest modelled cycles; empty where they are not legal.

    ``after`` counts the instructions for each sum of what follows the product. If that reads other
    matrices, it does so in pairs of columns where these end with a tile, else one by one. Tiles of
    the transpose are for a product of a known number of rows, if it ``may_swap``, and so are those
    of fewer than 64; with ``any_rows`` there are neither, nor slices of K, and none is legal where
    these gain much.
    """
    sides = ((product.a, product.rows), (product.b, product.columns))
    if product.sums not in _SUMS or not all(_is_matrix(product, *side) for side in sides):
        return {}
    m, n, k = product.sizes
    shape = prod(product.extents[i] for i in product.batch) * m, n, k
    by_k, a_transposed = product.b.k_major, not product.a.k_major
    size = DataType(product.operand).itemsize
    found = _gemm_hopper.fit(shape, product.operand, arch, by_k, a_transposed, after, may_swap)
    apart = (i for i in product.batch if product.extents[i] > 1 and i not in product.b.dims)
    images = USUAL_BATCH if any(True for _ in apart) else 1
    if found and images > 1 and not product.a.is_window:
        found = _gemm_hopper.fit_images(product.sizes, product.operand, by_k, images)
    if found and product.a.is_window:
        channels = product.extents[product.depth[-1]]
        images *= prod(product.extents[i] for i in product.batch if i in product.b.dims)
        found = _gemm_hopper.fit_windows(
            product.sizes, channels, product.operand, by_k, images, product.halo
        )
    if found and found["wgmma"] in _gemm_hopper.SWAPPED:
        return found
    tiles = [one for one in _gemm_hopper.TILES if _gemm_hopper.may_be_taken(one, after)]

    def cost(tile: str, slices: int = 1, cluster: int = 1) -> float:
        return _gemm_hopper.cycles(shape, tile, by_k, slices, size, cluster, after)

    if found and any_rows:
        tiles = [one for one in tiles if not _gemm_hopper.is_swapped(one)]
        tile, sliced = min(tiles, key=cost), min(cost(one, n) for one in tiles for n in SLICES)
        if cost(tile) > _SLICES_GAIN * sliced:
            return {}
        found = {"wgmma": tile, "split_k": 1}
    in_pairs = reads_more and product.sums == "float32"  # Of 8-bit types few tiles are left.
    if not found or not in_pairs or n % _gemm_hopper.columns_of(found["wgmma"]) == 0:
        return found
    even = [one for one in tiles if n % _gemm_hopper.columns_of(one) == 0]
    tile = min(even, key=cost, default="")
    least = cost(found["wgmma"], found["split_k"], found.get("cluster", 1))
    return {"wgmma": tile, "split_k": 1} if tile and cost(tile) <= _EVEN * least else found


def _is_matrix(product: Contraction, side: Operand, own: tuple[int, ...]) -> bool:
    """Whether an operand's rows, and what it sums, lie one behind the other behind its batch."""
    if side.is_window:
        return side.k_major
    wide = [i for i in side.dims if product.extents[i] > 1 and i not in product.batch]
    groups = (own, product.depth) if side.k_major else (product.depth, own)
    return wide == [i for group in groups for i in group if product.extents[i] > 1]


def _configurations() -> Iterator[dict[str, Any]]:
    usual = gemm.OPERATOR.default_config()
    for tile in TILES:
        for slices in SLICES:
            yield {**usual, **tile, "split_k": slices}


def _refusal(product: Contraction, config: Config, arch: Architecture) -> str:
    """Why a configuration is not legal, or nothing."""
    found = check_product(product, config, arch)
    if found is None and config["split_k"] > 1:
        steps = ceil(product.sizes[2] / int(config["tile_k"]))
        if (config["split_k"] - 1) * ceil(steps / config["split_k"]) >= steps:
            return f"{config['split_k']} slices of {steps} steps leave some empty."
    return found.text if found else ""
