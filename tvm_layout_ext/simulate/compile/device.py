"""Compiles what only device code has: memory accesses, warp operations, atomics, device calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import ir, sym, tirx
from tvm.ir.prim.expr import IntImm, Ramp

from ...errors import NotModelled
from ...ir import ops
from ...ir.conditions import is_zero
from ...ir.queries import op_name
from ..findings import Findings
from ..machine.warp import SHUFFLES, active_mask, ballot, shuffle, vote_any
from ..memory.access import AccessInstruction
from ..memory.local import LocalAccess
from ..memory.located_access import AddressCode
from ..model.code import FIXED, LAUNCH, UNIFORM, VARYING, Code, Run, lift
from ..model.names import find_names, note_versions
from ..model.places import Place, find_places, handle, shared_bases
from ..model.values import numpy_type, one_or_all, retyped, retyped_poison
from ..report import Site
from ..sites import Blocks, Script, loaded_names
from .atomics import NAMES, atomic
from .contract import ContractingCompiler
from .expressions import added
from .intrinsics import extern, popcount
from .nvcc import Nvcc


class DeviceCompiler(ContractingCompiler):
    """Compiles expressions of one device function; subclasses compile its statements."""

    def __init__(self, function: Any, findings: Findings, script: Script, blocks: Blocks) -> None:
        super().__init__(function)
        self.places = find_places(function)
        #: Resolves bare pointers into shared memory.
        self.names = find_names(function, self.places)
        note_versions(function, self.places, self.names)
        self.nvcc = Nvcc(function, self.places)
        self.findings = findings
        self.accesses: list[AccessInstruction] = []
        #: Where TMA writes shared memory.
        self.unit_sites: set[Site] = set()
        self._arrays: list[tuple[int, AccessInstruction]] = []
        self._script = script
        self._blocks = blocks
        self._line = 0
        self._block: str | None = None
        #: A name in the device function, and the buffer's own.
        self._renamed: tuple[str, str] | None = None
        self.loops: list[tuple[str, int]] = []

    def plain(self, statement: Any) -> Run | None:
        """Compile a statement without synchronisation; None if there is nothing to do."""
        raise NotImplementedError

    def branch(self, expr: Any, how: Callable[[Any], Code] | None = None) -> Code:
        """Compile an operand that only some threads evaluate."""
        with self.nvcc.branch():
            return super().branch(expr, how)

    def note_value(self, var: Any, value: Any) -> None:
        """Note what a variable is bound to."""
        self.nvcc.bind(var, value)

    # Sites.

    def enter(self, statement: Any) -> None:
        """Attribute what is compiled next to a statement."""
        self._line = self._script.lines.get(handle(statement), self._line)
        written = str(statement.buffer.name) if isinstance(statement, tirx.BufferStore) else None
        replaced = self._blocks.replaced(written, lambda: loaded_names(statement))
        self._renamed = None if replaced is None else replaced[:2]
        if replaced is not None:
            self._block = replaced[2]
        else:
            self._block = self._blocks.of(written, lambda: loaded_names(statement))

    def enter_block(self, written: str, read: str) -> None:
        """Attribute what is compiled next to the block that copies one buffer to another."""
        self._renamed, self._block = None, self._blocks.of(written, lambda: {read})

    def site(self, buffer: str) -> Site:
        """Site of a buffer in the current statement."""
        if self._renamed is not None and buffer == self._renamed[0]:
            buffer = self._renamed[1]
        made = Site(buffer, self._block, self._line)
        self.findings.note_loops(made, tuple(self.loops))
        return made

    # Accesses.

    def access(
        self, place: Place, start: Any, lanes: int, together: bool, kind: str, name: str = ""
    ) -> AccessInstruction:
        """Make an access of global or shared memory."""
        site = self.site(name or place.name)
        number = self.findings.new_site(site, kind == "atomic")
        address = self._address(start, place)
        made = AccessInstruction(number, site, place, kind, address, lanes, together)
        self.accesses.append(made)
        return made

    def _address(self, start: Any, place: Place) -> AddressCode:
        code = self._index(start, place)
        whole = code.rank == VARYING or (code.rank == UNIFORM and numpy_type(start)[1] > 1)
        if code.taint or (code.terms is None and whole):
            return AddressCode(None, None, code, 0)
        terms = code.terms or ((1, code),)
        fixed = [t for t in terms if t[1].rank in (LAUNCH, FIXED)]
        moving = [t for t in terms if t[1].rank == UNIFORM]
        zero = Code(lambda s, m: np.int32(0), LAUNCH)
        return AddressCode(
            added(fixed) if fixed else zero,
            added(moving) if moving else None,
            None,
            self.new_cache(),
        )

    def _start(self, indices: Any, place: Place) -> tuple[Any, int, bool]:
        """First index in scalars (or the index of each), elements, and whether they adjoin."""
        index = indices[0]
        for extent, more in zip(place.shape[1:], indices[1:], strict=True):
            index = index * extent + more
        lanes = numpy_type(index)[1]
        if place.lanes > 1 and lanes > 1:
            raise NotModelled(
                f"{place.name} holds vectors and is indexed by vectors, which has no model here."
            )
        if place.lanes > 1:
            return index * place.lanes, place.lanes, True
        if isinstance(index, Ramp) and isinstance(index.stride, IntImm) and index.stride.value == 1:
            return index.base, lanes, True
        return index, lanes, lanes == 1

    def load(self, expr: Any) -> Code:
        """Compile a buffer load."""
        place = self.places.at(expr.source)
        start, lanes, contiguous = self._start(expr.indices, place)
        if place.storage.scope == "local":
            return self._local(place, start, lanes, contiguous).load()
        if contiguous and lanes > 1 and place.lanes == 1 and not _divisible(start, lanes):
            start, contiguous = expr.indices[0], False
        made = self.access(place, start, lanes, contiguous, "load")
        self.nvcc.access(made, start)
        return Code(made.load, VARYING, True)

    def _index(self, start: Any, place: Place) -> Code:
        """Compile the index of an element in the storage, in elements of the view."""
        code = self.operand(start)
        if isinstance(place.offset, int) or is_zero(place.offset):
            return code
        return lift(np.add, code, self.operand(place.offset))

    def _local(self, place: Place, start: Any, lanes: int, contiguous: bool) -> LocalAccess:
        index, size = self._index(start, place), lanes * place.dtype.itemsize
        return LocalAccess(place, self.site(place.name), index, size, together=contiguous)

    def register(self, place: Place, start: Any, size: int) -> LocalAccess:
        """Make an access of registers that are ``size`` bytes of a local array."""
        index = self._index(start, place)
        return LocalAccess(place, self.site(place.name), index, size, register=True)

    def store(self, statement: Any) -> Run:
        """Compile a buffer store to a function of (path, mask)."""
        place = self.places.at(statement.buffer)
        start, lanes, contiguous = self._start(statement.indices, place)
        value = self.narrowed(statement.value)
        if place.storage.scope == "local":
            return self._local(place, start, lanes, contiguous).store(value)
        made = self.access(place, start, lanes, contiguous, "store")
        self.nvcc.access(made, start)
        pair = value.pair

        def run(s: Any, m: Any) -> None:
            made.store(s, m, *pair(s, m))

        return run

    # Addresses of shared memory.

    def shared_arrays(self) -> list[tuple[int, AccessInstruction]]:
        """Address of every shared array that may hold tiles, and an access of its bytes."""
        if not self._arrays:
            for number, base in shared_bases(self.places).items():
                if self.places.storages[number].dtype == _BARRIER:
                    continue
                place = self.places.bytes_of(number)
                made = self.access(place, IntImm("int32", 0), 1, True, "load")
                self._arrays.append((base, made))
        return self._arrays

    def _shared_address(self, expr: Any) -> Code:
        place, index = self.pointee(expr)
        base, size = shared_bases(self.places)[place.storage.number], place.dtype.itemsize
        return lift(
            lambda i: (base + np.asarray(i) * size).astype(np.uint32),
            self._index(index, place),
        )

    # Calls.

    def call(self, expr: Any) -> Code:
        """Compile a call that has a value."""
        name = getattr(expr.op, "name", str(expr.op))
        if name in (ops.CALL_PURE_EXTERN, ops.CALL_EXTERN):
            return self._extern(expr)
        if name in SHUFFLES:
            _, value, operand, width, *_ = expr.args
            return shuffle(name, self.narrowed(value), self.expr(operand), self.expr(width))
        handler = _CALLS.get(name)
        if handler is None:
            raise NotModelled(f"The simulated GPU does not model {name}, used in {expr}.")
        return handler(self, expr)

    def _extern(self, expr: Any) -> Code:
        name = str(expr.args[0].value)
        if name in NAMES:
            return self._atomic(NAMES[name], expr.args[1], list(expr.args[2:]))
        dtype, _ = numpy_type(expr)
        function = extern(name, dtype)
        if function is None:
            raise NotModelled(f"The simulated GPU does not model the device function {name}.")
        return lift(function, *[self.operand(argument) for argument in expr.args[1:]])

    def _atomic(self, update: Any, pointer: Any, operands: list[Any]) -> Code:
        place, index = self.pointee(pointer)
        self.nvcc.clobber()
        access = self.access(place, index, 1, True, "atomic")
        dtype = place.dtype
        codes = [
            lift(lambda x: np.asarray(x).astype(dtype), self.narrowed(operand))
            for operand in operands
        ]
        return atomic(access, update, codes)

    def _compare_and_swap(self, expr: Any) -> Code:
        def swap(old: Any, expected: Any, new: Any) -> Any:
            return np.where(old == expected, new, old)

        pointer, *operands = operands_of(expr)[0]
        return self._atomic(swap, pointer, operands)

    def pointee(self, pointer: Any, local: bool = False) -> tuple[Place, Any]:
        """Buffer and index that an ``address_of`` points at; ``local`` allows local arrays."""
        name = op_name(pointer)
        if name == ops.CUDA_CVTA_GENERIC_TO_SHARED:
            return self.pointee(pointer.args[0], local)
        if name == ops.PTX_ADDR:
            return self._displaced(*pointer.args)
        if name == ops.ADDRESS_OF:
            load = pointer.args[0]
            place = self.places.at(load.source)
            if place.storage.scope == "local" and not local:
                raise NotModelled(f"A pointer to local array {place.name} has no model here.")
            return place, self._start(load.indices, place)[0]
        return self.places.pointed(pointer), IntImm("int32", 0)

    def _displaced(self, base: Any, offset: Any) -> tuple[Place, Any]:
        """Buffer and index at a constant number of bytes from a pointer."""
        place, index = self.pointee(base)
        size = place.dtype.itemsize
        if not isinstance(offset, IntImm) or offset.value % size:
            raise NotModelled(
                f"An address {offset} bytes from an element of {place.name}, which has {size} "
                "bytes, has no model here."
            )
        return place, index + int(offset.value) // size

    def _reinterpret(self, expr: Any) -> Code:
        dtype, lanes = numpy_type(expr)
        source, others = numpy_type(expr.args[0])
        if source.itemsize * others != dtype.itemsize * lanes:
            raise NotModelled(f"The simulated GPU does not model {expr}, which changes the size.")
        value = self.narrowed(expr.args[0])
        if lanes != others:
            return _regrouped(value, dtype, lanes, others)
        return lift(lambda x: np.ascontiguousarray(x).view(dtype).reshape(np.shape(x)), value)

    def _ldg(self, expr: Any) -> Code:
        """Compile ``__ldg`` of a scalar: a load through the read-only cache."""
        if len(expr.args) != _SCALAR_LDG:
            raise NotModelled(f"The simulated GPU does not model the vector form of {expr}.")
        place, index = self.pointee(expr.args[0])
        return Code(self.access(place, index, 1, True, "load").load, VARYING, True)

    def _popcount(self, expr: Any) -> Code:
        dtype, _ = numpy_type(expr)
        return lift(lambda x: popcount(x).astype(dtype), self.narrowed(expr.args[0]))


def operands_of(call: Any) -> tuple[list[Any], list[str]]:
    """Operands of a PTX call and its modifiers, of which the last one holds flags."""
    operands = [a for a in call.args if not isinstance(a, ir.StringImm)]
    return operands, [str(a.value) for a in call.args if isinstance(a, ir.StringImm)]


def _regrouped(value: Code, dtype: Any, lanes: int, others: int) -> Code:
    """Compile the bits of ``others`` elements as ``lanes`` elements of another size."""

    def rows(x: Any) -> Any:
        spread = np.reshape(x, (1, -1)) if others == 1 else np.atleast_2d(x)
        return np.broadcast_to(spread, (others, spread.shape[-1]))

    def run(s: Any, m: Any) -> Any:
        x, p = value.pair(s, m)
        found = retyped(rows(x), dtype)
        return one_or_all(found, None if p is None else retyped_poison(rows(p), lanes))

    return Code(run, VARYING, True)


def _divisible(start: Any, lanes: int) -> bool:
    """Whether TVM's CUDA code generator loads the vector at once: only if it can prove this."""
    known = sym.Analyzer().modular_set(start)
    return known.coeff % lanes == 0 and known.base % lanes == 0


_SCALAR_LDG = 2
#: Type of mbarriers.
_BARRIER = np.dtype(np.uint64)
_CALLS = {
    ops.CHOICE: lambda c, e: c.choice(*e.args),
    ops.LIKELY: lambda c, e: c.expr(e.args[0]),
    ops.REINTERPRET: DeviceCompiler._reinterpret,
    ops.CUDA_LDG: DeviceCompiler._ldg,
    ops.CUDA_CVTA_GENERIC_TO_SHARED: DeviceCompiler._shared_address,
    ops.ISNAN: lambda c, e: lift(np.isnan, c.expr(e.args[0])),
    ops.POPCOUNT: DeviceCompiler._popcount,
    ops.CUDA___ACTIVEMASK: lambda c, e: active_mask(),
    ops.TVM_WARP_ACTIVEMASK: lambda c, e: active_mask(),
    ops.CUDA_BALLOT_SYNC: lambda c, e: ballot(c.expr(e.args[1])),
    ops.CUDA_ANY_SYNC: lambda c, e: vote_any(c.expr(e.args[1])),
    ops.CUDA_ATOMIC_ADD: lambda c, e: c._atomic(np.add, e.args[0], [e.args[1]]),
    ops.CUDA_ATOMIC_CAS: DeviceCompiler._compare_and_swap,
}
