"""Calls of Hopper's asynchronous units: mbarriers, TMA, ``wgmma``, registers of a warpgroup.

Each function gives a statement. The PTX ISA has a section of each instruction's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script import tirx as T

from ..gpu.warpgroups import PANEL_BYTES
from ..ir.queries import size_of
from ..ir.rebuild import sequence
from .warpgroups import WarpgroupInstruction

_LOAD = "cp.async.bulk.tensor.{}d.shared::cluster.global.mbarrier::complete_tx::bytes"
#: What follows for a load into all blocks of a cluster that a mask names.
_MULTICAST = ".multicast::cluster"
_STORE = "cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group"
#: By the bytes of a row: the swizzle of a descriptor, in its two highest bits, and the driver's.
_SWIZZLES = {128: (1, 3), 64: (2, 2)}
#: The driver's number of 128 bytes that a load brings to L2.
_PROMOTED_TO_L2 = 2
#: Bits of a shared address that a descriptor holds, in units of 16 bytes.
_ADDRESS = 0x3FFFF


@cache
def _ptx(instruction: str) -> Any:
    """What makes calls of an instruction, which TVM looks up piece by piece."""
    return T.ptx[instruction]


def _do(call: Any) -> Any:
    return tirx.Evaluate(call)


def _at(buffer: Any, index: Any) -> Any:
    return buffer.access_ptr("rw", offset=index)


def init_barrier(barriers: Any, index: Any, count: int) -> Any:
    """Let a phase of an mbarrier end after so many arrivals."""
    return _do(_ptx("mbarrier.init.shared.b64")(_at(barriers, index), T.uint32(count)))


def publish_barriers(blocks: int = 1) -> list[Any]:
    """Show initialised barriers to the asynchronous units, and then to all threads of a cluster."""
    return [
        _do(_ptx("fence.mbarrier_init.release.cluster")()),
        _do(_ptx("fence.proxy.async.shared::cta")()),
        *([_do(T.cuda.cta_sync())] if blocks == 1 else cluster_barrier()),
    ]


def cluster_barrier() -> list[Any]:
    """Wait for all threads of a cluster, which may come one by one."""
    return [
        _do(_ptx("barrier.cluster.arrive.release")()),
        _do(_ptx("barrier.cluster.wait.acquire")()),
    ]


def begin_cluster() -> list[Any]:
    """Show initialised barriers to a cluster, which need not wait for it before `wait_cluster`."""
    return [
        _do(T.ptx["fence.mbarrier_init.release.cluster"]()),
        _do(T.ptx["barrier.cluster.arrive.relaxed"]()),
    ]


def wait_cluster() -> Any:
    """Wait until all threads of a cluster have arrived."""
    return _do(T.ptx["barrier.cluster.wait.acquire"]())


def wait_barrier(barriers: Any, index: Any, parity: Any) -> Any:
    """Wait until the phase of this parity has ended."""
    return _do(T.cuda.mbarrier_wait(_at(barriers, index), parity))


def expect_bytes(barriers: Any, index: Any, count: int) -> Any:
    """Arrive, and let the phase end after so many bytes, too."""
    call = _ptx("mbarrier.arrive.expect_tx.shared.b64")
    return _do(call(_at(barriers, index), T.uint32(count)))


def arrive(barriers: Any, index: Any) -> Any:
    """Arrive at an mbarrier."""
    return _do(_ptx("mbarrier.arrive.shared.b64")(_at(barriers, index)))


def prefetch_map(tensor: Any) -> Any:
    """Bring a tensor map near, before the first copy waits for it."""
    return _do(_ptx("prefetch.tensormap")(T.address_of(tensor)))


def arrive_at(barriers: Any, index: Any, rank: Any, address: Any) -> Any:
    """Arrive at an mbarrier of a block of the cluster, whose address is put into a register.

    It says that a stage was read, and publishes no writes: ``release.cluster`` would wait for all
    of them in every step (``MEMBAR.ALL.GPU``; 254 us for 180 at 4096^3 on an H200).
    """
    call = _ptx("mbarrier.arrive.shared::cluster.b64")
    return sequence([map_address(address, _at(barriers, index), rank), _do(call(address))])


def map_address(result: Any, pointer: Any, rank: Any) -> Any:
    """Put into a register where a place in shared memory is in a block of the cluster."""
    own = T.cuda.cvta_generic_to_shared(pointer)
    return _do(_ptx("mapa.shared::cluster.u32")(result, own, T.Cast("uint32", rank)))


def store_at(address: Any, values: Sequence[Any], register: str) -> Any:
    """Store registers at an address in the shared memory of a cluster."""
    wide = f".v{len(values)}" if len(values) > 1 else ""
    kind = {"float32": "f32", "uint32": "u32"}[register]
    return _do(_ptx(f"st.shared::cluster{wide}.{kind}")(address, *values))


def send_to(address: Any, words: Sequence[Any], barrier: Any) -> Any:
    """Store words at an address in a cluster; their bytes count at an mbarrier beside them."""
    wide = f".v{len(words)}" if len(words) > 1 else ""
    into = f"st_async.weak.shared::cluster.mbarrier::complete_tx::bytes{wide}.u32"
    return _do(T.ptx[into](address, *words, barrier))


def load_box(
    pointer: Any, tensor: Any, at: Sequence[Any], barriers: Any, index: Any, blocks: int = 1
) -> Any:
    """Copy a box to shared memory; its bytes count at an mbarrier. ``at``: innermost dim first.

    Of several ``blocks`` of a cluster each gets it, at the same place, and counts it.
    """
    into = _LOAD.format(len(at)) + (_MULTICAST if blocks > 1 else "")
    mask = [T.uint16((1 << blocks) - 1)] if blocks > 1 else []
    return _do(_ptx(into)(pointer, T.address_of(tensor), *at, _at(barriers, index), *mask))


def store_box(pointer: Any, tensor: Any, at: Sequence[Any]) -> Any:
    """Copy a box from shared memory, as far as the tensor goes."""
    return _do(_ptx(_STORE.format(len(at)))(T.address_of(tensor), *at, pointer))


def store_turned(row: Any, words: Sequence[Any]) -> Any:
    """Store the transposes of 8 x 8 matrices, a register each, to rows that each lane names one of.

    As :func:`.copies.stmatrix`, whose rows are then columns.
    """
    return _do(_ptx(f"stmatrix.sync.aligned.m8n8.x{len(words)}.trans.shared.b16")(row, *words))


def commit_stores() -> Any:
    """End a group of bulk stores."""
    return _do(_ptx("cp.async.bulk.commit_group")())


def wait_stores(count: int, *, read: bool) -> Any:
    """Wait until all but the last groups of bulk stores are done, or have read their source."""
    kind = "cp.async.bulk.wait_group.read" if read else "cp.async.bulk.wait_group"
    return _do(_ptx(kind)(count))


def fence_shared() -> Any:
    """Show this thread's writes of shared memory to the asynchronous units."""
    return _do(_ptx("fence.proxy.async.shared::cta")())


def named_barrier(number: Any, threads: int) -> Any:
    """Wait for so many threads at a barrier of a number; 0 is that of the whole block."""
    return _do(_ptx("bar.sync")(T.Cast("uint32", number), T.uint32(threads)))


def arrive_named(number: Any, threads: int) -> Any:
    """Arrive at a barrier of a number, for which others wait with :func:`named_barrier`."""
    return _do(T.ptx["bar.arrive"](T.Cast("uint32", number), T.uint32(threads)))


def set_registers(count: int, *, more: bool) -> Any:
    """Let the threads of a warpgroup have so many registers."""
    kind = "inc" if more else "dec"
    return _do(_ptx(f"setmaxnreg.{kind}.sync.aligned.u32")(count))


def fence_sums() -> Any:
    """Order what the threads did to registers before the next ``wgmma``."""
    return _do(_ptx("wgmma.fence.sync.aligned")())


def commit_products() -> Any:
    """End a group of ``wgmma``."""
    return _do(_ptx("wgmma.commit_group.sync.aligned")())


def wait_products(count: int) -> Any:
    """Wait until all but the last groups of ``wgmma`` are done."""
    return _do(_ptx("wgmma.wait_group.sync.aligned")(count))


def descriptor(pointer: Any, leading: int, row_bytes: int, pitch: int = 8) -> Any:
    """Describe a tile of an operand in shared memory, which has the swizzle of its rows' bytes.

    Parameters
    ----------
    pointer : Expr
        Its first element.
    leading : int
        Bytes to the next 64 elements along M or N, where these are neighbours.
    row_bytes : int
        Bytes of a row, 128, or 64 of a tile that lies along K; eight lie one behind the other.
    pitch : int
        Rows from eight of them to the next eight.
    """
    address = T.Cast("uint64", T.bitwise_and(T.cuda.cvta_generic_to_shared(pointer), _ADDRESS) >> 4)
    constant = _SWIZZLES[row_bytes][0] << 62 | row_bytes * pitch // 16 << 32 | leading // 16 << 16
    return address + tirx.const(constant, "uint64")


def multiply(
    one: WarpgroupInstruction,
    sums: Sequence[Any],
    a: Any,
    b: Any,
    adds: Any,
    transposed: Sequence[bool],
) -> Any:
    """Multiply two described tiles into registers, or add to what they hold.

    ``a`` may be a sequence of four registers instead, which hold 16 columns of its rows.
    ``transposed``: for A and B, whether neighbours in memory lie along M or N; in registers those
    of A lie along K.
    """
    held = isinstance(a, Sequence)
    signs = () if one.sums == "int32" else (1, 1)
    turned = [int(value) for value in transposed[held:]] if one.takes_any_major else ()
    adds = T.ptx.pred(T.Cast("int32", adds))
    left = a if held else [a]
    return _do(_ptx(one.ptx)(*sums, *left, b, adds, *signs, *turned))


def power_of_two(result: Any, exponent: Any) -> Any:
    """Raise 2 to a power; what is too small for 32 bits without more zeros in front is zero."""
    return _do(_ptx("ex2.approx.ftz.f32")(result, exponent))


def pack(result: Any, low: Any, high: Any, dtype: str) -> Any:
    """Round two numbers to 16 bits each, into one register."""
    short = {"float16": "f16x2", "bfloat16": "bf16x2"}[dtype]
    return _do(_ptx(f"cvt.rn.{short}.f32")(result, high, low))


def sum_at(one: WarpgroupInstruction, sums: Any, number: Any) -> Any:
    """A sum in its type, of the registers of a thread."""
    if one.sums == "float32":
        return sums[number]
    if one.sums == "int32":
        return T.reinterpret("int32", sums[number])
    half = T.shift_right(sums[number // 2], T.Cast("uint32", number % 2 * 16))
    return T.reinterpret("float16", T.Cast("uint16", half))


def tensor_map(
    buffer: Any,
    extents: Sequence[Any],
    box: Sequence[int],
    shape: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
    row_bytes: int = PANEL_BYTES,
) -> tuple[Any, list[Any]]:
    """Describe the first elements of a buffer along each dim to TMA, on the host.

    Boxes have the swizzle of rows of ``row_bytes``, and zeros outside of the extents.

    Parameters
    ----------
    buffer : Buffer
        In global memory, without gaps.
    extents : sequence of int or Expr
        Elements along each dim.
    box : sequence of int
        Elements of a box along each dim, the innermost first.
    shape : sequence of int, optional
        What the buffer's shape is taken for.
    steps : sequence of int, optional
        From element to element of a box along each dim, the innermost first; 1 by default.
    row_bytes : int, optional
        128 or 64, which the innermost dim of a box does not exceed.

    Returns
    -------
    tuple
        The variable of the map, and the statements that fill it.
    """
    size = np.dtype(str(buffer.dtype)).itemsize
    shape = [size_of(one) for one in shape or buffer.shape]  # The innermost one is a number.
    pitches = [size * prod(shape[i:]) for i in range(len(shape) - 1, 0, -1)]
    kind = "uint8" if size == 1 else str(buffer.dtype)
    value = T.tvm_stack_alloca("tensormap", 1)
    var = tirx.Var(f"{buffer.name}_map", value.ty)
    swizzle = _SWIZZLES[row_bytes][1]
    steps, modes = steps or [1] * len(shape), (0, swizzle, _PROMOTED_TO_L2, 0)
    # The driver counts the elements that a box spans, also those that it leaves out.
    spans = [count * step for count, step in zip(box, steps, strict=True)]
    numbers = (*reversed(extents), *pitches, *spans, *steps, *modes)
    fill = T.call_packed(
        "runtime.cuTensorMapEncodeTiled", var, kind, len(shape), buffer.data, *numbers
    )
    return var, [tirx.Bind(var, value), tirx.Evaluate(fill)]
