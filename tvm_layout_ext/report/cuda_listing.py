"""The CUDA source of kernels, with the counters of the device functions' lines beside its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import tvm

from ..cubin import compiling_by
from ..ir.device_program import DeviceProgram
from ..simulate.report import AccessCounts, Report
from .listing import counted_lines, numbered

#: Where a kernel's definition begins in either text.
_SCRIPT_HEAD = re.compile(r"^def (\w+)\(")
_CUDA_HEAD = re.compile(r'^extern "C" __global__ .*?(\w+)\([^()]*\) \{$')
_DECLARED = re.compile(r"(\w+) = T\.decl_buffer\(.*\bdata=(\w+)(?:\.data)?\b")
_ALLOCATED = re.compile(r"(\w+) = T\.alloc_(?:shared|buffer)\(")


def cuda_source(program: DeviceProgram) -> str:
    """The kernels' definitions in CUDA, without what TVM puts before them."""
    generate = tvm.get_global_func("target.build.cuda")
    kernels = tvm.IRModule(dict(sorted(program.kernels.items())))
    # With a driver TVM compiles what it writes, for the GPU that is here if any.
    with compiling_by(lambda _source: b"none"):
        lines = str(generate(kernels, program.target).inspect_source()).split("\n")
    first = next((n for n, line in enumerate(lines) if _CUDA_HEAD.match(line)), 0)
    return "\n".join(lines[first:]).rstrip()


def cuda_listing(program: DeviceProgram, report: Report) -> str:
    """Number the lines of CUDA, with sectors and wavefronts of the blocks that were run.

    Both texts are written from the same statements. So the accesses of memory of a kernel are in
    the same order, and each is found by its pointer. Where one is not found, as in kernels of
    warpgroups, that kernel's lines are without counters.
    """
    source, script = cuda_source(program), report.script.split("\n")
    lines = source.split("\n")
    counted = counted_lines(report)
    at: dict[int, list[AccessCounts]] = {}
    cuda = dict(_kernels(lines, _CUDA_HEAD))
    for name, (first, last) in _kernels(script, _SCRIPT_HEAD):
        if name in cuda:
            place = _places(script[first:last], lines[slice(*cuda[name])])
            for number, found in counted.items():
                if first < number <= last and number - 1 - first in place:
                    at.setdefault(cuda[name][0] + place[number - 1 - first] + 1, []).extend(found)
    return numbered(lines, at)


def _kernels(lines: list[str], head: re.Pattern[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name, first line and line behind each definition."""
    heads = [(n, found[1]) for n, line in enumerate(lines) if (found := head.match(line))]
    ends = [n for n, _ in heads[1:]] + [len(lines)]
    for (first, name), end in zip(heads, ends, strict=True):
        yield name, (first, end)


def _places(script: list[str], cuda: list[str]) -> Mapping[int, int]:
    """By line of a kernel in TVMScript, the line of its first access in CUDA; empty if unsure."""
    pointers = _pointers(script)
    named = re.compile(rf"\b({'|'.join(pointers)})\[") if pointers else None
    found: dict[int, int] = {}
    behind = next((n + 1 for n, line in enumerate(cuda) if _CUDA_HEAD.match(line)), 0)
    for number, line in enumerate(script):
        wanted = {pointers[name] for name in named.findall(line)} if named else set()
        first = None
        while wanted:
            if behind == len(cuda):
                return {}
            seen = {one for one in wanted if re.search(rf"\b{one}\b", cuda[behind])}
            if seen and not cuda[behind].lstrip().startswith(("extern ", "__shared__ ")):
                first = behind if first is None else first
                wanted -= seen
            behind += 1
        if first is not None:
            found[number] = first
    return found


def _pointers(script: list[str]) -> dict[str, str]:
    """CUDA's pointer of each buffer of global and shared memory by its name in TVMScript."""
    found: dict[str, str] = {}
    for line in script:
        if buffer := _DECLARED.search(line):
            data = buffer[2]
            found[buffer[1]] = data if data.endswith("_ptr") else f"{data}_ptr"
        elif (buffer := _ALLOCATED.search(line)) and "shared" in line:
            found[buffer[1]] = f"{buffer[1]}_ptr"
    return found
