"""What ``mma.sync`` reaches in a product: a GEMM written by hand, with parts of its loop left out.

``python -m benchmarks.ceiling --out FILE`` compiles the variants of ``ceiling.cu``, checks those
that are whole products against float64, and times all in turns with cuBLAS. It wants a GPU of
compute capability 9.0, nvcc and torch; ``--compile-only`` wants nvcc.

TFLOPS are the arithmetic of the product over the median time of launches in a CUDA graph; what
tiles that overhang the matrix compute twice is not counted. The clocks of a block, before, in and
after its loop, are means over the blocks of one launch; it runs alone, before the turns, so its
clock rate can be higher than in them.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.counters import environment
from benchmarks.cubin import Cubin
from benchmarks.gemm_gpu import medians, operands, torch_product
from benchmarks.gemm_kernels import ARCH, Case

__all__ = ["VARIANTS", "Ceiling", "Variant"]

SOURCE = Path(__file__).with_name("ceiling.cu")
SHAPE, ROUNDS = (4096, 4096, 4096), 9
WORK = Path(tempfile.gettempdir()) / "ceiling_cubins"
_MAX_DYNAMIC_SHARED = 8
#: Value of MODE of a whole product.
WHOLE = 7
#: Floating-point operations of one mma.sync.m16n8k16.
_MMA = 2 * 16 * 8 * 16
#: What MODE leaves in the loop.
_MODES = {0: "regs", 1: "ldsm", 5: "ldsm+bar", 6: "copies+bar", WHOLE: "all"}


@dataclass(frozen=True)
class Variant:
    """One way to compile ``ceiling.cu``.

    Attributes
    ----------
    name : str
        Warp tile, then what is left in the loop, or what differs from the whole product.
    macros : dict of str to int
        As the head of ``ceiling.cu`` explains them.
    """

    name: str
    macros: dict[str, int]

    @property
    def shared(self) -> int:
        """Bytes of all stages."""
        m = self.macros
        return m["STAGES"] * (m["BM"] + m["BN"]) * m["BK"] * 2

    @property
    def is_whole(self) -> bool:
        """Whether the result is the product."""
        return self.macros.get("MODE", WHOLE) == WHOLE

    @property
    def file(self) -> str:
        """Stem of its files."""
        return re.sub(r"[^a-z0-9]+", "_", self.name)


def _tile(m: int, n: int, warps_m: int, warps_n: int, blocks: int = 1) -> dict[str, int]:
    found = {"BM": m, "BN": n, "WARPS_M": warps_m, "WARPS_N": warps_n}
    return found | ({"MINB": blocks} if blocks > 1 else {})


#: Warp tiles of 64x64, 64x96, 96x64 and 80x80 by eight warps; h: by four, two blocks together.
_TILES = {
    "w64": _tile(256, 128, 4, 2),
    "w96": _tile(256, 192, 4, 2),
    "t96": _tile(192, 256, 2, 4),
    "s80": _tile(320, 160, 4, 2),
    "s80x64": _tile(320, 128, 4, 2),
    "h64": _tile(128, 128, 2, 2, 2),
    "h96": _tile(128, 192, 2, 2, 2),
}


def _variant(tile: str, text: str, bk: int, stages: int, a: int, b: int, **more: int) -> Variant:
    given = {"BK": bk, "STAGES": stages, "A_MODE": a, "B_RING": b} | more
    return Variant(f"{tile} {text}", _TILES[tile.removesuffix("d")] | given)


def _parts() -> list[Variant]:
    """What each part of the loop costs."""
    found = []
    for tile, bk, a, b in (
        ("w64", 64, 1, 1),
        ("w96", 64, 2, 2),
        ("w96d", 64, 1, 2),
        ("h64", 32, 1, 1),
    ):
        found += [_variant(tile, text, bk, 4, a, b, MODE=mode) for mode, text in _MODES.items()]
    return found


def _fragments() -> list[Variant]:
    """When fragments are loaded, per tile."""
    ways = {
        ("w64", 64, 4): ((0, 0), (1, 0), (2, 2), (2, 4), (1, 2), (0, 2)),
        ("w96", 64, 4): ((0, 0), (2, 3), (0, 2), (2, 0)),
        ("t96", 64, 4): ((0, 0), (2, 2), (1, 2)),
        ("s80", 64, 3): ((0, 0), (2, 2), (2, 5)),
        ("s80x64", 64, 3): ((2, 2), (2, 4)),
    }
    found = [
        _variant(tile, f"a{a}b{b}", bk, stages, a, b)
        for (tile, bk, stages), pairs in ways.items()
        for a, b in pairs
    ]
    found += [_variant("h64", f"64 a{a}b{b}", 64, 3, a, b) for a, b in ((0, 0), (1, 1), (2, 2))]
    for bk, stages, a, b in (
        (32, 5, 0, 0),
        (32, 5, 2, 2),
        (32, 5, 1, 2),
        (64, 2, 2, 2),
        (32, 3, 2, 2),
    ):
        found.append(_variant("h96", f"bk{bk} s{stages} a{a}b{b}", bk, stages, a, b))
    return found


def _others() -> list[Variant]:
    """Depth, stages, order of products, place of copies, order of blocks."""
    found = []
    for tile, way in (("w64", 1), ("w96", 2)):
        for bk, stages in ((32, 4), (32, 6), (32, 8), (64, 3)):
            found.append(_variant(tile, f"bk{bk} s{stages}", bk, stages, way, way))
        found.append(_variant(tile, "serp", 64, 4, way, way, SERP=1))
        found.append(_variant(tile, "l2", 64, 4, way, way, PREFETCH_L2=1))
        for name, values in (("SPREAD", (1, 2, 4)), ("GROUP", (1, 4, 16))):
            for n in values:
                found.append(_variant(tile, f"{name.lower()}{n}", 64, 4, way, way, **{name: n}))
    return [*found, _variant("w64", "bk128 s2", 128, 2, 1, 1)]


VARIANTS = (*_parts(), *_fragments(), *_others())


def compiled(variant: Variant, folder: Path) -> dict[str, Any]:
    """Compile a variant into a folder, if it is not there; return registers and spilled bytes."""
    out = folder / f"{variant.file}.cubin"
    facts = out.with_suffix(".json")
    if not facts.exists():
        flags = [f"-D{name}={value}" for name, value in variant.macros.items()]
        command = ["nvcc", "-w", "-O3", "-std=c++17", f"-arch={ARCH}", "-cubin", "-Xptxas", "-v"]
        done = subprocess.run(
            [*command, *flags, "-o", str(out), str(SOURCE)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"nvcc does not compile {variant.name}:\n{done.stderr}")
        used = re.search(r"Used (\d+) registers", done.stderr)
        spilled = sum(map(int, re.findall(r"(\d+) bytes spill", done.stderr)))
        told = {"registers": int(used[1]) if used else 0, "spills": spilled}
        facts.write_text(json.dumps(told))
    found: dict[str, Any] = json.loads(facts.read_text())
    return found


class Ceiling(Cubin):
    """Machine code of a variant, ready to run."""

    def __init__(self, variant: Variant, folder: Path) -> None:
        super().__init__((folder / f"{variant.file}.cubin").read_bytes())
        self.variant = variant
        self.kernel = self.function("ceiling")
        self._call("cuFuncSetAttribute", self.kernel, _MAX_DYNAMIC_SHARED, variant.shared)
        m, n = variant.macros["BM"], variant.macros["BN"]
        self.blocks = -(-SHAPE[0] // m) * -(-SHAPE[1] // n)

    def run(self, a: Any, b: Any, c: Any, times: Any = None) -> None:
        """Launch on torch's current stream."""
        import torch

        macros = self.variant.macros
        values = [ctypes.c_uint64(x.data_ptr()) for x in (a, b, c)]
        values += [ctypes.c_uint64(n) for n in SHAPE]  # read as ints of 32 bits
        values.append(ctypes.c_uint64(0 if times is None else times.data_ptr()))
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._call(
            "cuLaunchKernel", self.kernel, self.blocks, 1, 1,
            32 * macros["WARPS_M"] * macros["WARPS_N"], 1, 1, self.variant.shared, stream,
            pointers, None,
        )  # fmt: skip

    def clocks(self, a: Any, b: Any, c: Any) -> dict[str, float]:
        """A block's clocks before, in and after the loop, their rate, and those of a product."""
        import torch

        times = torch.zeros((self.blocks, 4), dtype=torch.int64, device="cuda")
        for _ in range(3):
            self.run(a, b, c, times)
        torch.cuda.synchronize()
        head, loop, tail, nanoseconds = times.double().mean(0).tolist()
        macros = self.variant.macros
        flops = 2 * macros["BM"] * macros["BN"] * SHAPE[2] * macros.get("MINB", 1)
        return {
            "head": head,
            "loop": loop,
            "tail": tail,
            "ghz": (head + loop + tail) / nanoseconds,
            "cycles_per_mma": loop / (flops / _MMA),
        }


def _wrong(variant: Variant, c: Any, want: Any) -> str:
    """Say how many elements of a whole product differ from float64, or nothing."""
    if not variant.is_whole:
        return ""
    bound = 2 * 2.0**-10 * want.abs() + SHAPE[2] * 2.0**-20
    bad = int((~((c.double() - want).abs() <= bound)).sum())
    return f"{bad} elements differ" if bad else ""


def measured(folder: Path, variants: list[Variant], rounds: int) -> list[dict[str, Any]]:
    """Check and time variants and cuBLAS."""
    import torch

    case = Case(SHAPE, "")
    a, b = operands(case)
    want = a.double() @ b.double().t()
    library = torch_product(case, a, b)
    assert library is not None
    calls: dict[str, Callable[[], Any]] = {"cuBLAS": library}
    rows: dict[str, dict[str, Any]] = {"cuBLAS": {"name": "cuBLAS", "wrong": ""}}
    for variant in variants:
        code = Ceiling(variant, folder)
        c = torch.full(SHAPE[:2], float("nan"), dtype=torch.float16, device="cuda")
        clocks = code.clocks(a, b, c)
        facts = {"name": variant.name, "macros": variant.macros, "blocks": code.blocks}
        rows[variant.name] = facts | compiled(variant, folder) | clocks
        rows[variant.name]["wrong"] = _wrong(variant, c, want)
        calls[variant.name] = partial(code.run, a, b, c)
    for name, (seconds, all_seconds) in medians(calls, rounds).items():
        rows[name] |= {"tflops": case.flops / seconds / 1e12, "all_seconds": all_seconds}
    return sorted(rows.values(), key=lambda row: row["tflops"])


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as text."""
    lines = ["TFLOPS | registers, spilled bytes | clocks: head, loop, tail | GHz | SM clocks a mma"]
    for row in rows:
        line = f"{row['tflops']:6.1f} {row['name']:20}"
        if "loop" in row:
            line += f"{row['registers']:4}{row['spills']:5} |{row['head']:6.0f}{row['loop']:8.0f}"
            line += f"{row['tail']:7.0f} | {row['ghz']:.2f} | {row['cycles_per_mma']:.3f}"
        lines.append(f"{line} {row['wrong']}".rstrip())
    return "\n".join(lines)


def main(
    out: Annotated[Path | None, typer.Option(help="Write raw results here, as JSON.")] = None,
    work: Annotated[Path, typer.Option(help="Where machine code is kept.")] = WORK,
    only: Annotated[str, typer.Option(help="Variants whose name contains this.")] = "",
    compile_only: bool = False,
) -> None:
    """Time what mma.sync reaches at 4096x4096x4096, float16, A @ B^T."""
    variants = [variant for variant in VARIANTS if only in variant.name]
    work.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        facts = list(pool.map(lambda variant: compiled(variant, work), variants))
    if compile_only:
        for variant, told in zip(variants, facts, strict=True):
            print(f"{variant.name:20} {told['registers']:4} registers {told['spills']:5} spilled")
        return
    rows = measured(work, variants, ROUNDS)
    print(table(rows))
    if out is not None:
        record = {
            "environment": environment(),
            "git": os.environ.get("TVM_LAYOUT_EXT_GIT_ID", ""),
            "shape": SHAPE,
            "type": "float16",
            "layout": "nt",
            "rounds": ROUNDS,
            "rows": rows,
        }
        out.write_text(json.dumps(record, indent=1) + "\n")
    if any(row["wrong"] for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
