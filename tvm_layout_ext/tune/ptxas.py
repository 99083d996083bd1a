"""What ptxas says of a kernel: the registers of a thread."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["registers"]


def registers(source: str, arch: str) -> int | None:
    """Registers of a thread of the hungriest kernel in CUDA source.

    Parameters
    ----------
    source : str
        CUDA C++, as TVM's code generation gives it.
    arch : str
        ptxas's name of the architecture.

    Returns
    -------
    int or None
        None where there is no nvcc to ask, or it fails.
    """
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cu"
        path.write_text(source)
        command = [nvcc, f"-arch={arch}", "-cubin", "-Xptxas=-v", "-o", f"{path}.cubin", str(path)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    used = [int(number) for number in re.findall(r"Used (\d+) registers", ran.stderr)]
    return max(used, default=None)
