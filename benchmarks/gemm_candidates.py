"""The products and configurations that :mod:`benchmarks.gemm` measures."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import stock_tvm
from benchmarks.gemm_kernels import Case

__all__ = ["BEST", "COUNTED", "PARTS", "STAGED", "all_cases", "part_cases", "summary_cases"]

SQUARE = (4096, 4096, 4096)
SHAPES = (
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (8192, 8192, 8192),
    (4096, 11008, 4096),
    (8192, 1024, 8192),
)


def _config(tile: tuple[int, int, int], warps: tuple[int, int], stages: int, rest: str = "") -> str:
    m, n, k = tile
    text = f"tile_m={m} tile_n={n} tile_k={k} warps_m={warps[0]} warps_n={warps[1]} stages={stages}"
    return f"{text} {rest}" if "prefetch" in rest else f"{text} prefetch=0 {rest}".strip()


#: Each number of stages at two depths of tile, and what the swizzle does for one of them.
_STAGES = [
    *(_config((128, 128, 32), (2, 2), n) for n in (1, 2, 3, 4, 5)),
    *(_config((128, 128, 64), (2, 2), n) for n in (1, 2, 3)),
    *(_config((128, 256, 32), (2, 4), n) for n in (1, 2, 3, 4)),
    *(_config((128, 256, 64), (2, 4), n) for n in (2, 3, 4)),
    *(_config((256, 128, 32), (4, 2), n) for n in (3, 4)),
    *(_config((256, 128, 64), (4, 2), n) for n in (2, 3)),
    *(_config((64, 256, 32), (1, 4), n) for n in (3, 4)),
    _config((64, 256, 64), (1, 4), 3),
]
_WARPS = [
    _config((128, 128, 32), (2, 4), 3),
    _config((128, 128, 32), (4, 2), 4),
    _config((128, 128, 64), (4, 2), 3),
    _config((128, 64, 64), (2, 2), 4),
]
_GROUPS = [
    _config((128, 128, 32), (2, 2), 4, "group=1"),
    _config((128, 256, 64), (2, 4), 3, "group=1"),
    _config((128, 256, 64), (2, 4), 3, "group=4"),
    _config((128, 256, 64), (2, 4), 3, "group=16"),
]
_SWIZZLES = [
    _config((128, 128, 64), (2, 2), stages, f"swizzle={mode}")
    for stages in (1, 3)
    for mode in ("xor", "pad", "none")
]
#: What is measured at every shape.
_FEW = [
    _config((128, 128, 32), (2, 2), 4),
    _config((128, 128, 64), (2, 2), 3),
    _config((128, 256, 32), (2, 4), 4),
    _config((128, 256, 64), (2, 4), 3),
    _config((256, 128, 64), (4, 2), 3),
]
_SMALL = [*_FEW, _config((128, 64, 64), (2, 2), 4), _config((64, 64, 64), (2, 2), 4)]
_TYPES = {
    "bfloat16": _config((128, 128, 64), (2, 2), 3),
    "float32": _config((128, 128, 32), (2, 2), 3),
    "int8": _config((128, 128, 64), (2, 2), 3),
    # sm_90 has no such mma.sync and widens the operands: four warps would spill.
    "float8_e4m3fn": _config((128, 128, 64), (2, 4), 3),
}
_SWIZZLES_NN = [_config((128, 128, 64), (2, 2), 1, f"swizzle={m}") for m in ("auto", "pad", "none")]


def all_cases() -> list[Case]:
    """Every case, the most wanted first."""
    cases = [Case(SQUARE, c) for c in (*_STAGES, *_WARPS, *_GROUPS, *_SWIZZLES)]
    cases += [Case(SQUARE, c, layout="nn") for c in (*_FEW, *_SWIZZLES_NN)]
    cases += [
        Case(SQUARE, config, operand, layout)
        for operand, config in _TYPES.items()
        for layout in ("nt", "nn")
    ]
    for shape in SHAPES:
        for layout in ("nt", "nn"):
            few = _SMALL if min(shape) <= 1024 or shape[0] == 2048 else _FEW
            cases += [Case(shape, config, layout=layout) for config in few]
    return cases


#: The fastest configurations of the sweep at 4096^3 (``results/h200_gemm_sweep_best.json``).
BEST = (
    _config((256, 128, 64), (4, 2), 4, "prefetch=1"),
    _config((128, 256, 64), (2, 4), 4, "prefetch=1"),
    _config((128, 128, 32), (2, 2), 4, "prefetch=1"),
    _config((256, 128, 64), (4, 2), 3, "prefetch=1"),
)
#: One tile in every number of versions.
STAGED = tuple(
    _config((128, 128, 32), (2, 2), stages, f"prefetch={prefetch}")
    for prefetch in (1, 0)
    for stages in range(1, 7)
)
_LARGE = (8192, 8192, 8192)
_BEST_TYPES = {
    ("bfloat16", _LARGE): BEST[:2],
    ("int8", _LARGE): (
        _config((128, 128, 64), (2, 2), 3),
        _config((256, 128, 128), (4, 2), 3, "prefetch=1"),
    ),
    ("float32", SQUARE): (
        _config((128, 128, 32), (2, 2), 3),
        _config((256, 128, 32), (4, 2), 3, "prefetch=1"),
    ),
    ("float8_e4m3fn", _LARGE): (
        _TYPES["float8_e4m3fn"],
        _config((128, 128, 64), (2, 4), 3, "prefetch=1"),
    ),
}
#: M, N, K of large products; those of a few rows of A, which read B and no more, are left out.
TABLE = (
    SQUARE,
    _LARGE,
    (4096, 11008, 4096),
    (4096, 4096, 11008),
    (8192, 1024, 8192),
    (2048, 2048, 16384),
    (2048, 2048, 2048),
    (1024, 1024, 1024),
)


#: Tiles whose swizzles are compared: rows of K of 128 bytes and of 64.
_COMPARED = tuple(
    _config((128, 128, depth), (2, 2), stages, f"swizzle={mode}")
    for depth in (64, 32)
    for stages in (1, 2, 3, 4)
    for mode in ("xor", "pad", "none")
)
#: Larger tiles at every depth that fits.
_DEEP = (
    *(_config((128, 128, 64), (2, 2), n, "prefetch=1") for n in range(1, 6)),
    *(_config((256, 128, 64), (4, 2), n, "prefetch=1") for n in range(1, 5)),
)
#: What :mod:`benchmarks.gemm` can measure alone, in less than a minute each.
PARTS: dict[str, tuple[Case, ...]] = {
    "shapes": (
        *(Case(shape, config) for shape in TABLE for config in BEST),
        *(Case(SQUARE, config, layout="nn") for config in BEST[:3]),
    ),
    "types": tuple(
        Case(shape, config, operand)
        for (operand, shape), configs in _BEST_TYPES.items()
        for config in configs
    ),
    "stages": (
        *(Case(SQUARE, config) for config in (*STAGED, *_DEEP)),
        Case(SQUARE, _config((128, 128, 32), (2, 2), 4, "group=1")),
    ),
    "swizzles": tuple(Case(SQUARE, config) for config in _COMPARED),
    "stock": (
        *(stock_tvm.StockCase(SQUARE, config) for config in stock_tvm.CANDIDATES),
        *(Case(SQUARE, config) for config in BEST),
    ),
}


def part_cases(names: Sequence[str]) -> list[Case]:
    """Cases of some of the parts, each once."""
    return list(dict.fromkeys(case for name in names for case in PARTS[name]))


def summary_cases() -> list[Case]:
    """Every part: the best at every shape and type, every depth, what swizzles do, stock TVM."""
    return part_cases([*PARTS])


_SMALL_SHAPE = (256, 256, 256)
_COUNTED_CONFIGS = {
    "float16": _config((128, 128, 64), (2, 2), 3),
    **_TYPES,
}
#: Cases whose shared wavefronts are counted, small enough to be simulated whole.
COUNTED: dict[str, Case] = {
    f"{operand} {layout} {mode} stages={stages}": Case(
        _SMALL_SHAPE,
        config.replace("stages=3", f"stages={stages} swizzle={mode}"),
        operand,
        layout,
    )
    for operand, config in _COUNTED_CONFIGS.items()
    for layout in ("nt", "nn")
    for mode, stages in (
        (("auto", 3), ("pad", 3), ("none", 3), ("auto", 1), ("pad", 1), ("none", 1))
        if operand == "float16"
        else (("auto", 3),)
    )
}
#: Rows of K of 64 bytes beside those of 128 and the other way round: what ``cp.async`` takes
#: depends on it.
_OTHER_DEPTH = {
    "float16": _config((128, 128, 32), (2, 2), 3),
    "bfloat16": _config((128, 128, 32), (2, 2), 3),
    "float32": _config((128, 128, 16), (2, 2), 3),
    "int8": _config((128, 128, 128), (2, 2), 3),
    "float8_e4m3fn": _config((128, 128, 128), (2, 4), 3),
}
COUNTED |= {
    f"{operand} nt {mode} stages=3 tile_k={config.split()[2].partition('=')[2]}": Case(
        _SMALL_SHAPE, f"{config} swizzle={mode}", operand
    )
    for operand, config in _OTHER_DEPTH.items()
    for mode in (("auto", "pad") if operand == "float16" else ("auto",))
}
