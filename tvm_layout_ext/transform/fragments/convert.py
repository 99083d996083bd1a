"""Copy one fragment to another of a different layout, the cheapest way that suffices."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import DataType, tirx
from tvm.s_tir import SBlock, SBlockRealize

from ... import decisions
from ...gpu.hardware import STATIC_SHARED_BYTES, WARP_SIZE
from ...ir.rebuild import sequence
from ...layout import LinearLayout, Movement, movement
from ...layout.conversion.per_thread import split_input
from ...layout.conversion.round_trip import RoundTrip, Transfer, plan_round_trip
from ...layout.conversion.shuffles import ShufflePlan, plan_shuffles
from .elementwise import only_one_copy
from .fragment import Fragment, Fragments
from .index import coordinates
from .nest import FragmentTile

_NAME = "LowerFragment"
#: Types that have a shuffle; others go through shared memory.
_SHUFFLED = ("int", "uint", "float16", "bfloat16", "float32", "float64")
_ALL_LANES = 0xFFFFFFFF


def conversion_source(
    tile: FragmentTile, fragments: Fragments
) -> tuple[Fragment, LinearLayout] | None:
    """The fragment that a copy converts, and its layout with the dims of the new one."""
    value = tile.store.value
    if fragments.of(tile.store.buffer) is None or not isinstance(value, tvm.ir.TensorLoad):
        return None
    source = fragments.of(value.source)
    if source is None or source is tile.fragment:
        return None
    dims = tile.dims(value.indices)
    wanted = tile.fragment.layout.out_dims
    names = source.layout.out_names
    if dims is None or sorted(-1 if d is None else d for d in dims) != list(range(len(wanted))):
        return None
    order = [names[dims.index(d)] for d in range(len(wanted))]
    turned = source.layout.transpose_outs(order)
    moved = turned.rename_outs(dict(zip(order, tile.fragment.layout.out_names, strict=True)))
    return (source, moved) if moved.out_dims == wanted else None


def lower_conversion(source: Fragment, src: LinearLayout, target: Fragment, thread: Any) -> Any:
    """Bring every thread its new elements; ``src`` has the dims in the order of the target."""
    dst = target.layout
    way = movement(src, dst)
    if way in (Movement.NONE, Movement.REGISTERS):
        return _moves(source, src, target)
    if way is Movement.SHUFFLES and str(target.buffer.dtype).startswith(_SHUFFLED):
        plan = plan_shuffles(src, dst)
        assert plan is not None
        return _shuffles(source, target, plan, thread)
    trip = plan_round_trip(src, dst, _bits(target.buffer))
    return _round_trip(source, target, trip, thread)


def _moves(source: Fragment, src: LinearLayout, target: Fragment) -> Any:
    registers = target.layout.invert_and_compose(src).sublayout(["register"], ["register"])
    decisions.note(_NAME, target.name, f"register moves from {source.name}")
    return sequence(
        _store(
            target.registers, r, _load(source.registers, registers.apply(register=r)["register"])
        )
        for r in range(target.layout.in_sizes["register"])
    )


# Shuffles


def _shuffles(source: Fragment, target: Fragment, plan: ShufflePlan, thread: Any) -> Any:
    count = plan.source.in_sizes["register"]
    lane = tirx.floormod(thread, WARP_SIZE)
    decisions.note(_NAME, target.name, f"{count} warp shuffles a thread from {source.name}")
    if not any(plan.place.flat_basis("lane")):
        return _exchanges(source.registers, target.registers, plan, lane)
    received = tirx.decl_buffer(
        [count], target.buffer.dtype, f"{target.name}_received", scope="local"
    )
    exchanges = _exchanges(source.registers, received, plan, lane)
    places = sequence(
        _store(target.registers, r, _selected(received, plan.place, r, lane)) for r in range(count)
    )
    return _block(tirx.SeqStmt([exchanges, places]), f"{target.name}_shuffles", [received])


def _exchanges(source: Any, received: Any, plan: ShufflePlan, lane: Any) -> Any:
    count = plan.source.in_sizes["register"]
    return sequence(_store(received, k, _exchanged(source, plan, k, lane)) for k in range(count))


def _exchanged(registers: Any, plan: ShufflePlan, exchange: int, lane: Any) -> Any:
    """The register that this lane gets in one exchange."""
    sent = _selected(registers, plan.send, exchange, lane)
    distance = plan.source.apply(register=exchange, lane=0)["index"]
    kept = tuple((1 << bit,) for bit in range(len(plan.source.basis("lane"))))
    if plan.source.basis("lane") != kept:
        taken = coordinates(plan.source, {"register": exchange, "lane": lane})["index"]
        return _warp_call("tvm_warp_shuffle", sent, taken)
    return _warp_call("tvm_warp_shuffle_xor", sent, distance) if distance else sent


def _warp_call(name: str, value: Any, operand: Any) -> Any:
    mask = tirx.const(_ALL_LANES, "uint32")
    return tirx.call_intrin(value.ty, f"tirx.{name}", mask, value, operand, WARP_SIZE, WARP_SIZE)


def _selected(registers: Any, layout: LinearLayout, register: int, lane: Any) -> Any:
    """The register that a layout names for this lane; its lanes differ in one bit at most."""
    first = layout.apply(register=register, lane=0)["index"]
    images = layout.flat_basis("lane")
    change = max(images)
    if not change:
        return _load(registers, first)
    bits = LinearLayout.from_bases({"lane": [(int(v > 0),) for v in images]}, {"bit": 2})
    differs = coordinates(bits, {"lane": lane})["bit"]
    return tirx.Select(differs == 1, _load(registers, first ^ change), _load(registers, first))


# Through shared memory


def _round_trip(source: Fragment, target: Fragment, trip: RoundTrip, thread: Any) -> Any:
    dtype = target.buffer.dtype
    size = trip.elements * _bits(target.buffer) // 8
    scope = "shared" if size <= STATIC_SHARED_BYTES else "shared.dyn"
    scratch = tirx.decl_buffer(
        [trip.elements], dtype, f"{target.name}_scratch", scope=scope, data_alignment=128
    )
    rounds = []
    for number in range(trip.rounds):
        write = _transfers(source.registers, scratch, trip.write, number, thread, into=True)
        rounds += [
            only_one_copy(source.own, thread, write),
            _transfers(target.registers, scratch, trip.read, number, thread, into=False),
        ]
    decisions.note(
        _NAME,
        target.name,
        f"{trip.rounds} round trips from {source.name} through {size:,} bytes of shared memory",
    )
    return _block(sequence(rounds), f"{target.name}_round_trip", [scratch])


def _transfers(
    registers: Any, scratch: Any, way: Transfer, number: int, thread: Any, *, into: bool
) -> Any:
    """Move the registers of one round into shared memory, or back."""
    side, bits = way.offsets, way.vector
    others = [i for i in range(len(side.basis("register"))) if i not in bits]
    parts = split_input(side, "register", {"vector": bits, "rest": others})
    numbers = LinearLayout.identity(side.in_sizes["register"], "register", "register")
    names = split_input(numbers, "register", {"vector": bits, "rest": others})
    moves = []
    for rest in range(1 << len(others)):
        if parts.apply(vector=0, rest=rest, thread=0)["round"] == number:
            at = coordinates(parts, {"vector": 0, "rest": rest, "thread": thread})["offset"]
            held = [names.apply(vector=v, rest=rest)["register"] for v in range(1 << len(bits))]
            moves += _transfer(registers, scratch, at, held, into=into)
    return sequence(moves)


def _transfer(registers: Any, scratch: Any, at: Any, held: list[int], *, into: bool) -> list[Any]:
    """Move some registers at once; those that are no neighbours are gathered into a vector."""
    width, first = len(held), held[0]
    memory = scratch, at
    if held == list(range(first, first + width)):
        own = registers, first
        return [_vector_copy(memory, own, width) if into else _vector_copy(own, memory, width)]
    vector = tirx.decl_buffer([width], registers.dtype, f"{registers.name}_vector", scope="local")
    if into:
        gather = [_store(vector, v, _load(registers, r)) for v, r in enumerate(held)]
        body = [*gather, _vector_copy(memory, (vector, 0), width)]
    else:
        scatter = [_store(registers, r, _load(vector, v)) for v, r in enumerate(held)]
        body = [_vector_copy((vector, 0), memory, width), *scatter]
    return [_block(tirx.SeqStmt(body), f"{registers.name}_vector", [vector])]


def _vector_copy(target: tuple[Any, Any], source: tuple[Any, Any], width: int) -> Any:
    if width == 1:
        return _store(*target, _load(*source))
    v = tirx.Var("v", "int32")
    move = _store(target[0], target[1] + v, _load(source[0], source[1] + v))
    return tirx.For(v, 0, width, tirx.ForKind.VECTORIZED, move)


# Statements


def _load(buffer: Any, index: Any) -> Any:
    return tirx.BufferLoad(buffer, [index])


def _store(buffer: Any, index: Any, value: Any) -> Any:
    return tirx.BufferStore(buffer, value, [index])


def _bits(buffer: Any) -> int:
    return int(DataType(str(buffer.dtype)).bits)


def _block(body: Any, name: str, buffers: list[Any]) -> Any:
    block = SBlock([], [], [], name, body, None, buffers)
    return SBlockRealize([], True, block)
