"""Small programs of one warp, written statement by statement, for the tests of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent
from typing import Any

import numpy as np
import tvm

LANES = 32
ZEROS = np.zeros(LANES, "float32")


def copy(to: str, source: str, stages: int = 2, *, name: str = "", at: str = "t") -> str:
    """A block that fills ``to[at]`` from an element; ``name`` by default that of the buffer."""
    reads = f"T.reads({source})" if "[" in source else "T.reads()"
    return "\n".join(
        [
            f"with T.sblock('{name or to}'):",
            f"    {reads}",
            f"    T.writes({to}[{at}])",
            f"    T.sblock_attr({{'layout_ext.num_stages': {stages}}})" if stages else "    pass",
            f"    {to}[{at}] = {source}",
        ]
    ).replace("    pass\n", "")


def block(name: str, reads: str, writes: str, statement: str) -> str:
    """A block with its regions."""
    return "\n".join(
        [
            f"with T.sblock('{name}'):",
            f"    T.reads({reads})",
            f"    T.writes({writes})",
            indent(statement, "    "),
        ]
    )


def loop(head: str, *body: str) -> str:
    """A loop, or anything else with a head, around statements."""
    return f"{head}:\n" + indent("\n".join(body), "    ")


#: Adds up what lies in S, element by element of another thread's.
SUM = block("sum", "B[t], S[31 - t]", "B[t]", "B[t] = B[t] + S[31 - t]")


def rows(number: int) -> np.ndarray:
    """So many rows of small numbers."""
    return np.random.default_rng(number).integers(-8, 8, (number, LANES)).astype("float32")


def params(number: int) -> str:
    """Parameters of a function: A of so many rows, and B of one."""
    return f"A: T.Buffer(({number}, {LANES}), 'float32'), B: T.Buffer(({LANES},), 'float32')"


def program(
    parameters: str,
    body: Sequence[str],
    shared: Sequence[str] = ("S",),
    scope: str = "shared",
    before: str = "",
) -> Any:
    """A function of one block of 32 threads, whose lane is ``t``, with shared rows of 32."""
    rows = [f"{name} = T.sblock_alloc_buffer(({LANES},), scope='{scope}')" for name in shared]
    inside = loop("with T.sblock('all')", *rows, *body)
    kernel = loop(
        "for x in T.thread_binding(1, thread='blockIdx.x')",
        loop(f"for t in T.thread_binding({LANES}, thread='threadIdx.x')", inside),
    )
    text = indent(f"{before}\n{kernel}" if before else kernel, "    ")
    return tvm.script.from_source(f"@T.prim_func(s_tir=True)\ndef main({parameters}):\n{text}\n")
