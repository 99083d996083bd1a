"""The fastest read and the fastest copy of some bytes: what memory-bound kernels are held against.

No one configuration is fastest at every size, so all of them are tried on the very bytes of a row
and the best few take part in its timing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["COPIES", "READS", "SOURCE", "Limit", "launcher"]

SOURCE = Path(__file__).with_name("limits.cu")
#: Threads that a multiprocessor holds; as many blocks stay on it as fill it.
_RESIDENT_THREADS = 2048
VECTOR_BYTES = 16
#: Loads of all threads of a block whose results fit in a multiprocessor's 65,536 registers.
_MOST_LOADS = 8192


@dataclass(frozen=True)
class Limit:
    """One configuration of a kernel in ``limits.cu``.

    Attributes
    ----------
    kernel : str
        ``read``, ``read_stream``, ``copy`` or ``copy_stream``; streams pass the L1 cache by.
    loads : int
        16-byte loads that a thread has on their way.
    threads : int
        Of a block.
    stays : bool
        Whether as many blocks as fit at once walk over all chunks, or each takes one.
    """

    kernel: str
    loads: int
    threads: int
    stays: bool

    @property
    def name(self) -> str:
        """Name in tables and results."""
        grid = "filling grid" if self.stays else "a chunk a block"
        return f"limit: {self.kernel} {self.loads}x16 B, {self.threads} threads, {grid}"

    def blocks(self, count: int, processors: int) -> int:
        """Blocks to launch for ``count`` vectors."""
        chunks = -(-count // (self.threads * self.loads))
        return min(chunks, processors * _RESIDENT_THREADS // self.threads) if self.stays else chunks


def _limits(operation: str, loads: tuple[int, ...]) -> tuple[Limit, ...]:
    return tuple(
        Limit(kernel, together, threads, stays)
        for kernel in (operation, f"{operation}_stream")
        for together in loads
        for threads in (256, 512, 1024)
        for stays in (False, True)
        if together * threads <= _MOST_LOADS
    )


READS = _limits("read", (2, 4, 8, 16))
COPIES = _limits("copy", (1, 2, 4, 8))


def launcher(cubin: Any, limit: Limit, source: Any, target: Any) -> Callable[[], None]:
    """Bind a configuration to tensors; reads write no more than one word of ``target``."""
    import torch

    if source.nbytes % VECTOR_BYTES:
        raise ValueError(f"{source.nbytes} bytes are no whole number of 16-byte vectors.")
    count = source.nbytes // VECTOR_BYTES
    processors = torch.cuda.get_device_properties(source.device).multi_processor_count
    blocks = limit.blocks(count, processors)
    function = cubin.function(f"{limit.kernel}_{limit.loads}")
    pointers = source.data_ptr(), count, target.data_ptr()

    def launch() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        cubin.launch(function, blocks, limit.threads, *pointers, stream=stream)

    return launch
