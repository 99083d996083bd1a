"""What index code a swizzle leaves in a loop, read from the machine code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import tvm

from tests.programs.swizzles import gemm

TARGET = {
    "kind": "cuda",
    "arch": "sm_90a",
    "max_shared_memory_per_block": 232448,
    "max_threads_per_block": 1024,
}
INTEGER = re.compile(
    r"\b(U?IMAD|U?IADD3?|U?LOP3|U?LEA|U?SHF|U?ISETP|VIADD|PRMT|IABS|SEL|U?MOV|R2UR|VIMNMX)\b"
)


def disassembler() -> str | None:
    """From a CUDA toolkit, or from the package ``nvidia-cuda-nvdisasm``."""
    packaged = Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/bin/nvdisasm")
    return shutil.which("nvdisasm") or next(map(str, packaged), None)


def machine_code(sch: Any, folder: Path) -> list[str]:
    source = tvm.compile(sch.mod, target=tvm.target.Target(TARGET)).mod.imports[0].inspect_source()
    (folder / "k.cu").write_text(source)
    command = ["nvcc", "-arch=sm_90a", "-cubin", "-o", "k.cubin", "k.cu"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    tool = disassembler()
    assert tool is not None
    ran = subprocess.run([tool, "-c", "k.cubin"], cwd=folder, check=True, capture_output=True)
    return ran.stdout.decode().splitlines()


def loop_with_matrices(lines: list[str]) -> list[str]:
    """The body of the innermost loop that loads matrices."""
    labels: dict[str, int] = {}
    for number, line in enumerate(lines):
        if label := re.match(r"(\.L_x_\d+):", line):
            labels[label[1]] = number
        jump = re.search(r"BRA.*(\.L_x_\d+)", line)
        if jump and jump[1] in labels:
            body = lines[labels[jump[1]] : number]
            if any("LDSM" in one for one in body):
                return body
    raise AssertionError("no loop loads matrices")


@pytest.mark.nvcc
@pytest.mark.skipif(disassembler() is None, reason="no nvdisasm: pip install tvm-layout-ext[sass]")
def test_a_swizzle_costs_the_inner_loop_no_more_than_plain_rows(tmp_path: Path) -> None:
    counts = {}
    for mode in ("none", "auto"):
        folder = tmp_path / mode
        folder.mkdir()
        sch = gemm({"A": mode, "B": mode}, k=512, tile_k=64)
        body = loop_with_matrices(machine_code(sch, folder))
        matrices = sum("LDSM" in line for line in body)
        integers = sum(INTEGER.search(line) is not None for line in body)
        assert matrices == 16
        counts[mode] = integers
    # Of the loop's own counters and global addresses, too: all that is no load, mma or barrier.
    assert counts["auto"] <= 2 * 16
    assert counts["auto"] <= counts["none"] + 2
