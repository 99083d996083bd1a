"""Compiles the calls of Hopper's asynchronous units that no thread waits in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import ir
from tvm.ir.prim.expr import IntImm

from ...errors import NotModelled, SimulationError
from ...gpu.warpgroups import WARPGROUP_THREADS
from ...ir import ops
from ..findings import IN_FLIGHT
from ..matrix.product import exact, rounded
from ..matrix.shapes import TYPES
from ..memory.memory import FRESH
from ..memory.registers import read_all, write_all
from ..model.code import Code, Run, in_turn
from ..model.places import handle, shared_bases
from ..model.warp_batch import DivergentPath
from ..warpgroups.barriers import Barriers
from ..warpgroups.product import DescribedTile, TileBytes, gathered, spread, tile_bytes
from ..warpgroups.steps import AwaitNamed
from ..warpgroups.units import PendingProduct, ReadRange, Units, each, units_of, warpgroups
from .device import DeviceCompiler, operands_of
from .matrix_calls import registers_of

#: Bits of an address in shared memory below the rank of a block in its cluster.
_RANK = 24
_MULTICAST = "multicast::cluster"
#: What ``ftz`` does not make zero.
_SMALLEST = 2.0**-126


def _by_lane(act: Callable[[Any, int], None]) -> Run:
    """Do something for each active thread."""

    def run(s: Any, m: Any) -> None:
        own = units_of(s.batch)
        for lane in map(int, s.batch.threads(m)):
            act(own, lane)

    return run


def _by_warpgroup(c: DeviceCompiler, what: str, act: Callable[[Any, int], None]) -> Run:
    """Do something for each active warpgroup, given its first thread."""
    site = c.site("wgmma")

    def run(s: Any, m: Any) -> None:
        own = units_of(s.batch)
        for first in warpgroups(s.batch, m, what, site):
            act(own, first)

    return run


def barrier_of(c: DeviceCompiler, pointer: Any) -> tuple[Any, Code]:
    """Storage and index of an mbarrier."""
    place, index = c.pointee(pointer)
    return place.storage, c.operand(index)


def _with_barriers(c: DeviceCompiler, call: Any, act: Callable[..., None]) -> Run:
    pointer, *more = operands_of(call)[0]
    storage, index = barrier_of(c, pointer)
    values = [c.expr(one) for one in more]

    def run(s: Any, m: Any) -> None:
        found = units_of(s.batch).of(storage)
        at, numbers = each(s, index, m), [each(s, value, m) for value in values]
        for lane in s.batch.threads(m):
            block = int(s.batch.block_of[lane])
            act(found, block, int(at[lane]), int(lane) // 32, *(int(n[lane]) for n in numbers))

    return run


def _map_address(c: DeviceCompiler, call: Any) -> Run:
    """The address that an address has in another block: its rank is in the bits above."""
    (result, *parts), _ = operands_of(call)

    def mapped(address: Any, rank: Any) -> Any:
        return (address.astype(np.uint32) | rank.astype(np.uint32) << _RANK)[None]

    return _computed(c, result, parts, mapped, lambda *codes: np.maximum(*codes)[None])


def _at_barriers(c: DeviceCompiler, address: Any, act: Callable[..., None]) -> Run:
    """Do something at an mbarrier of another block, by its address."""
    code, site = c.narrowed(address), c.site("barrier")
    bases = shared_bases(c.places)
    storages = [one for one in c.places.storages if one.number in bases]

    def run(s: Any, m: Any) -> None:
        own, found = units_of(s.batch), each(s, code, m)
        for lane in map(int, s.batch.threads(m)):
            rank, at = divmod(int(found[lane]), 1 << _RANK)
            storage = next(x for x in storages if 0 <= at - bases[x.number] < x.bytes)
            block, index = own.of_cluster(lane, rank), (at - bases[storage.number]) // 8
            own.reach(lane, block, own.of(storage), index, site)
            act(own.of(storage), block, index, lane // 32)

    return run


def _store_at(c: DeviceCompiler, call: Any) -> Run:
    """Store registers in the shared memory of a block of the cluster, by its address."""
    (address, *registers), tokens = operands_of(call)
    if "shared::cluster" not in tokens:
        raise NotModelled(f"The simulated GPU does not model {' '.join(tokens)}.")
    return _stored_at(c, address, registers)


def _stored_at(c: DeviceCompiler, address: Any, registers: list[Any]) -> Run:
    code, parts = c.narrowed(address), registers_of(c, registers)
    arrays = [
        (base, c.access(access.place, IntImm("int32", 0), 1, True, "store"))
        for base, access in c.shared_arrays()
    ]

    def run(s: Any, m: Any) -> None:
        own, lanes = units_of(s.batch), s.batch.threads(m)
        values, poison = read_all(parts, s, m, np.dtype(np.uint8))
        found = each(s, code, m)[lanes]
        for rank in np.unique(found >> _RANK):
            here = lanes[found >> _RANK == rank]
            at = found[found >> _RANK == rank].astype(np.int64) % (1 << _RANK)
            base, access = next(x for x in reversed(arrays) if x[0] <= at.min())
            blocks = np.array([own.of_cluster(int(lane), int(rank)) for lane in here])
            for lane, block in zip(here[::32], blocks[::32], strict=True):
                own.note(int(lane), int(block), access.site)
            start = at - base + blocks * access.place.storage.span
            cells = start + np.arange(len(values))[:, None]
            memory = access.memory(s.batch)
            for block in np.unique(blocks):
                span = at[blocks == block] - base
                first = int(here[np.argmax(blocks == block)])
                own.check_reads(first, block, access, int(span.min()), int(span.max()))
            codes = None if poison is None else poison[:, here]
            access.write(s.batch, memory, cells, here, values[:, here], codes)

    return run


def _send_to(c: DeviceCompiler, call: Any) -> Run | None:
    """The same, and count the bytes at an mbarrier of that block."""
    (address, *registers, barrier), _ = operands_of(call)
    count = 4 * len(registers)
    store = _stored_at(c, address, registers)
    done = _at_barriers(c, barrier, lambda found, *at: found.complete(*at, count))
    return in_turn([store, done])


def _arrive_named(c: DeviceCompiler, call: Any) -> Run:
    """Arrive at a named barrier, where others wait."""
    number, threads = (c.expr(one) for one in operands_of(call)[0])
    return AwaitNamed(number, threads, c.new_slot(), c.site("barrier")).arrive


def _arrive(c: DeviceCompiler, call: Any) -> Run:
    (pointer, *_), _ = operands_of(call)
    if isinstance(pointer, ir.TensorLoad):
        return _at_barriers(c, pointer, Barriers.arrive)
    return _with_barriers(c, call, Barriers.arrive)


def _fence(c: DeviceCompiler, call: Any) -> Run:
    def run(s: Any, m: Any) -> None:
        clocks = s.batch.clocks
        for warp in np.unique(s.batch.threads(m) // 32):
            units_of(s.batch).fenced[int(warp)] = clocks.now
        clocks.now += 1

    return run


def _map(c: DeviceCompiler, pointer: Any) -> int:
    """Which parameter of the kernel a tensor map is."""
    while isinstance(pointer, ir.Call):
        pointer = pointer.args[0]
    place = c.places.by_pointer.get(handle(pointer))
    if place is None:
        raise NotModelled(f"Cannot tell which tensor map {pointer} means.")
    return place.storage.number


def _load(c: DeviceCompiler, call: Any) -> Run:
    (target, tensor, *at), tokens = operands_of(call)
    mask = int(at.pop().value) if _MULTICAST in tokens else None
    barrier = at.pop()
    place, start = c.pointee(target)
    offset, number = c.operand(start), _map(c, tensor)
    access = c.access(place, IntImm("int32", 0), 1, True, "store")
    c.unit_sites.add(access.site)
    storage, index = barrier_of(c, barrier)
    coordinates = [c.expr(one) for one in at]

    def run(s: Any, m: Any) -> None:
        own, tensor = units_of(s.batch), s.batch.launch.kernel.scalars[number]
        first, where = each(s, offset, m), each(s, index, m)
        box = [each(s, one, m) for one in coordinates]
        for lane in map(int, s.batch.threads(m)):
            byte, at_barrier = int(first[lane]) * place.dtype.itemsize, int(where[lane])
            blocks = [int(s.batch.block_of[lane])]
            if mask is not None:
                ranks = [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
                blocks = [own.of_cluster(lane, rank) for rank in ranks]
            for block in blocks:
                own.reach(lane, block, own.of(storage), at_barrier, access.site)
                place_of = [int(one[lane]) for one in box]
                barriers = own.of(storage), at_barrier
                own.load(lane, block, access, byte, tensor, place_of, barriers)
            for block in blocks:
                own.of(storage).complete(block, at_barrier, lane // 32, tensor.box_bytes)

    return run


def _store(c: DeviceCompiler, call: Any) -> Run:
    (tensor, *at, source), _ = operands_of(call)
    place, start = c.pointee(source)
    offset, number = c.operand(start), _map(c, tensor)
    shared = c.access(place, IntImm("int32", 0), 1, True, "load")
    whole = c.places.bytes_of(number)
    target = c.access(whole, IntImm("int32", 0), 1, True, "store")
    coordinates = [c.expr(one) for one in at]

    def run(s: Any, m: Any) -> None:
        tensor = s.batch.launch.kernel.scalars[number]
        first = each(s, offset, m)
        box = [each(s, one, m) for one in coordinates]
        for lane in map(int, s.batch.threads(m)):
            byte = int(first[lane]) * place.dtype.itemsize
            where = [int(one[lane]) for one in box]
            units_of(s.batch).store(lane, (shared, target), byte, tensor, where)

    return run


def _wait_stores(c: DeviceCompiler, call: Any) -> Run:
    allowed = int(operands_of(call)[0][0].value)
    return _by_lane(lambda own, lane: own.wait_stores(lane, allowed))


def _wait_products(c: DeviceCompiler, call: Any) -> Run:
    allowed = int(operands_of(call)[0][0].value)
    return _by_warpgroup(c, "wgmma.wait_group", lambda own, at: own.wait_products(at, allowed))


def _multiply(c: DeviceCompiler, call: Any) -> Run:
    operands, tokens = operands_of(call)
    is_held = call.op.name in (ops.PTX_WGMMA_F16_RS, ops.PTX_WGMMA_BF16_RS)
    shape, *_, result, kind, other, _ = tokens[3:]
    # Of floats there are two signs, and of 16 bits whether each tile in memory is transposed.
    count = {"f16": 4, "bf16": 4, "s8": 0, "u8": 0}.get(kind, 2) - is_held
    immediates = [int(one.value) for one in operands[len(operands) - count :]]
    *given, b, adds = operands[: len(operands) - count]
    sums, left = given[: -4 if is_held else -1], given[-4 if is_held else -1 :]
    if immediates[:2] not in ([], [1, 1]) or kind != other or kind not in TYPES:
        raise NotModelled(f"The simulated GPU does not model {' '.join(tokens)}.")
    turned = immediates[2:] or [0, 0]
    columns, depth = (int(n) for n in shape.removeprefix("m64n").split("k"))
    dtype, out, site = TYPES[kind], TYPES[result], c.site("wgmma")
    parts = registers_of(c, sums)
    held = registers_of(c, left) if is_held else None
    codes = [c.expr(one) for one in (b if is_held else left[0], b, adds)]
    name = handle(sums[0].source)
    majors = not turned[0], not turned[-1]
    loads = c.shared_arrays()

    def run(s: Any, m: Any) -> None:
        own = units_of(s.batch)
        first_of = [each(s, code, m) for code in codes]
        kept = list(s.slots)
        for first in warpgroups(s.batch, m, "wgmma", site):
            left, right, more = (int(values[first]) for values in first_of)
            tiles = [DescribedTile.read(right, columns, depth, majors[1])]
            if held is None:
                tiles.insert(0, DescribedTile.read(left, 64, depth, majors[0]))
            block = int(s.batch.block_of[first])
            warps = tuple(range(first // 32, first // 32 + 4))
            places, reads = [], []
            for tile in tiles:
                bytes_of = tile_bytes(tile, dtype.itemsize)
                access, base = _placed(loads, bytes_of)
                shift = block * access.place.storage.span - base
                warp_lanes = np.arange(first, first + WARPGROUP_THREADS, 32)
                own.check_read(access, bytes_of.cells + shift, warp_lanes, "wgmma reads")
                span = bytes_of.low - base, bytes_of.high - base
                reads.append(ReadRange(block, *span, warps, access.site))
                places.append((access, bytes_of.addresses + shift))
            own.reads += reads
            lanes = slice(first, first + WARPGROUP_THREADS)
            _mark(s, parts, lanes, bool(more), site, out)
            finish = _finish(s.batch, kept, parts, lanes, (held, places, kind, out, bool(more)))
            own.products.setdefault(first, []).append(
                PendingProduct(own.groups.get(first, 0), name, finish, tuple(reads))
            )

    return run


def _placed(loads: Any, tile: TileBytes) -> tuple[Any, int]:
    """The shared array that a tile lies in, and where it begins."""
    for base, access in loads:
        if base <= tile.low and tile.high <= base + access.place.storage.bytes:
            return access, base
    raise SimulationError(
        f"A wgmma descriptor reaches bytes {tile.low:,} to {tile.high - 1:,} of shared memory, "
        "which no array holds."
    )


def _mask_of(batch: Any, lanes: slice) -> Any:
    """Mask of adjoining threads."""
    mask = np.zeros(batch.size, bool)
    mask[lanes] = True
    return mask


def _mark(s: Any, parts: Any, lanes: slice, more: bool, site: Any, out: Any) -> None:
    """Poison the sums until the product is waited for."""
    mask = _mask_of(s.batch, lanes)
    values, poison = read_all(parts, s, mask, out, lanes)
    if more and poison is not None:
        other = np.where(poison == IN_FLIGHT, 0, poison)
        if other.any():
            wrong = np.zeros(s.batch.size, np.int64)
            wrong[lanes] = other.max(axis=0)
            s.batch.launch.findings.poison_at(site, s.batch, wrong, wrong != 0, "is added to")
    codes = np.full(values.shape, IN_FLIGHT, np.int64)
    write_all(parts, s, mask, values, codes, lanes)


def _finish(batch: Any, slots: Any, parts: Any, lanes: slice, what: Any) -> Callable[[bool], None]:
    """Multiply, when the product is waited for."""
    held, places, kind, out, more = what
    dtype = TYPES[kind]
    state, mask = DivergentPath(batch, None, slots), _mask_of(batch, lanes)

    def run(goes_on: bool) -> None:
        operands, unwritten = [], False
        if held is not None:
            own, codes = read_all(held, state, mask, dtype, lanes)
            unwritten = codes is not None and bool(codes.any())
            operands.append(gathered(own).astype(np.float64))
        for access, at in places:
            memory = access.memory(batch)
            operands.append(exact(memory.data.view(dtype)[at // dtype.itemsize], kind))
            assert memory.shadow is not None
            unwritten |= bool((memory.shadow.writes[at] == 0).any())
            if memory.poison is not None:
                unwritten |= bool(memory.poison[at].any())
        total = operands[0] @ operands[1].T
        if more:
            before, _ = read_all(parts, state, mask, out, lanes)
            total = total + gathered(before).astype(np.float64)
        values = spread(rounded(total, out))
        code = IN_FLIGHT if goes_on else FRESH
        codes = np.full(values.shape, code, np.int64) if goes_on or unwritten else None
        write_all(parts, state, mask, values, codes, lanes)

    return run


def _computed(
    c: DeviceCompiler,
    result: Any,
    parts: list[Any],
    function: Callable[..., Any],
    spread: Callable[..., Any],
) -> Run:
    """Fill a register with what a thread computes of values, ``[elements, threads]``.

    ``spread`` makes poison of it of the poison of the values.
    """
    to, codes = registers_of(c, [result]), [c.narrowed(one) for one in parts]

    def run(s: Any, m: Any) -> None:
        pairs = [code.pair(s, m) for code in codes]
        poison = None
        if any(p is not None for _, p in pairs):
            whole = [np.broadcast_to(0 if p is None else p, s.batch.size) for _, p in pairs]
            poison = spread(*whole)
        found = function(*(np.broadcast_to(value, s.batch.size) for value, _ in pairs))
        write_all(to, s, m, found, poison)

    return run


def _power(c: DeviceCompiler, call: Any) -> Run:
    (result, exponent), _ = operands_of(call)

    def power(value: Any) -> Any:
        found = np.exp2(value)
        return np.where(found < _SMALLEST, np.float32(0), found).astype(np.float32)[None]

    return _computed(c, result, [exponent], power, lambda codes: codes[None])


def _pack(c: DeviceCompiler, call: Any) -> Run:
    (result, *parts), tokens = operands_of(call)
    dtype = TYPES[tokens[-2 if tokens[-1] else -3].removesuffix("x2")]

    def packed(*values: Any) -> Any:
        return np.stack([value.astype(dtype) for value in values])

    return _computed(c, result, parts[::-1], packed, lambda *codes: np.stack(codes))


def _fused(c: DeviceCompiler, call: Any) -> Run:
    """``a * b + c`` of two halves in each register, rounded once."""
    (result, *parts), tokens = operands_of(call)
    kind = next(one for one in tokens if one.endswith("x2"))
    dtype = TYPES[kind.removesuffix("x2")]

    def joined(*words: Any) -> Any:
        # The lower half lies first.
        halves = (one.astype(np.uint32).view(dtype).reshape(-1, 2).T for one in words)
        a, b, added = (half.astype(np.float64) for half in halves)
        return (a * b + added).astype(dtype)

    return _computed(
        c, result, parts, joined, lambda *codes: np.stack([np.maximum.reduce(codes)] * 2)
    )


#: Op name -> its compiler.
UNIT_CALLS: dict[str, Callable[[Any, Any], Run | None]] = {
    ops.PTX_MBARRIER_INIT: lambda c, call: _with_barriers(c, call, Barriers.initialise),
    ops.PTX_BAR_ARRIVE: _arrive_named,
    ops.PTX_MAPA: _map_address,
    ops.PTX_PREFETCH: lambda c, call: None,
    ops.PTX_ST: _store_at,
    ops.PTX_ST_VEC: _store_at,
    ops.PTX_ST_ASYNC: _send_to,
    ops.PTX_ST_ASYNC_VEC: _send_to,
    ops.PTX_MBARRIER_ARRIVE_NOCOUNT: _arrive,
    ops.PTX_MBARRIER_ARRIVE_EXPECT_TX: _arrive,
    ops.PTX_FENCE_PROXY: _fence,
    ops.PTX_FENCE_MBARRIER_INIT: lambda c, call: None,
    ops.PTX_CP_ASYNC_BULK_TENSOR_G2S_CLUSTER: _load,
    ops.PTX_CP_ASYNC_BULK_TENSOR_S2G: _store,
    ops.PTX_CP_ASYNC_BULK_COMMIT_GROUP: lambda c, call: _by_lane(Units.commit_stores),
    ops.PTX_CP_ASYNC_BULK_WAIT_GROUP: _wait_stores,
    ops.PTX_WGMMA_FENCE: lambda c, call: None,
    ops.PTX_WGMMA_COMMIT_GROUP: lambda c, call: _by_warpgroup(
        c, "wgmma.commit_group", Units.commit_products
    ),
    ops.PTX_WGMMA_WAIT_GROUP: _wait_products,
    ops.PTX_WGMMA_F16_SS: _multiply,
    ops.PTX_WGMMA_BF16_SS: _multiply,
    ops.PTX_WGMMA_F16_RS: _multiply,
    ops.PTX_WGMMA_BF16_RS: _multiply,
    ops.PTX_EX2: _power,
    ops.PTX_FMA_HALF: _fused,
    ops.PTX_CVT_F16X2: _pack,
    ops.PTX_CVT_BF16X2: _pack,
    ops.PTX_WGMMA_F16_F16ACC_SS: _multiply,
    ops.PTX_WGMMA_FP8_SS: _multiply,
    ops.PTX_WGMMA_INT_SS: _multiply,
    ops.PTX_WGMMA_TF32_SS: _multiply,
}
