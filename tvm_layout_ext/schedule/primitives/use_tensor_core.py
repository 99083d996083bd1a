"""``sch.use_tensor_core``: multiply on tensor cores, by instructions that suit types and GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...analysis.contraction import Contraction, Operand, read_contraction
from ...checks import is_one_of, whole
from ...errors import ScheduleError
from ...gpu.hardware import Architecture, architecture
from ...intrin import Instruction, choose, clear_name, load_name, multiply_name
from ...intrin.instructions import TILE
from ...intrin.warpgroups import WarpgroupInstruction, choose_warpgroup, is_warpgroup
from ...ir.annotations import NOT_WARPGROUPS, TENSOR_CORE, WARPGROUP
from ..block_tiles import by_warpgroups, by_warps, check_tile, why_no_warpgroups
from ..handles import blockize_tiles, find_block, own_arch
from ..merge_iterators import check_loops, merge_iterators
from ..product_blocks import keep_sums, read_by, stage_operands

Unit = Instruction | WarpgroupInstruction
#: Columns of a ``wgmma`` where nobody says.
_COLUMNS = 128


@dataclass(frozen=True)
class TensorCore:
    """What :func:`use_tensor_core` leaves to the user to place: blocks and loops."""

    product: Any  #: Multiplies tiles of 16 x 16 x k, in loops ``batch``, ``m``, ``n`` and ``k``
    batch: tuple[Any, ...]  #: A loop for each batch iterator, and for others of extent 1
    m: Any  #: Loops over tiles
    n: Any
    k: Any
    a: Any  #: Copy an operand to shared memory, filled up with zeros; the loops follow memory
    b: Any
    #: Load tiles from shared memory into the registers of a warp; place them under a loop of k.
    #: None for ``wgmma``, which reads shared memory.
    a_fragment: Any
    b_fragment: Any
    result: Any  #: Reads the sums in registers; ``sch.distribute_epilogue`` gives each lane its own
    #: Whether rows of the operand in memory lie along K. If not, ``ldmatrix`` transposes elements
    #: of 16 bits; others are loaded one by one.
    a_k_major: bool
    b_k_major: bool
    instruction: str  #: The instruction that was chosen
    #: With ``tile``: a loop over 64 rows each of a block's tile, for ``specialize_warps``
    warpgroup: Any = None


def use_tensor_core(
    sch: Any,
    block: Any,
    instruction: str = "auto",
    *,
    multiples: Sequence[int] | None = None,
    tile: Sequence[int] | None = None,
    swap: bool = False,
    scope: str = "shared.dyn",
    arch: str | None = None,
) -> TensorCore:
    """Let tensor cores do a sum of products.

    The block becomes a loop nest over tiles of 16 x 16 x k, with copies of its operands in shared
    memory and in registers. Tiling, thread blocks and warps stay the user's: bind warps to
    ``threadIdx.y`` and ``threadIdx.z``, the lanes are ``threadIdx.x``. docs/tensor_cores.md shows
    the program before and after, and :class:`TensorCore` says what is returned.

    Parameters
    ----------
    block : SBlockRV or str
        The sum, its loops not touched yet: ``C[b..., m, n] += A[b..., m, k] * B[b..., n, k]`` with
        the indices of each buffer in any order; m, n and k may be several iterators each.
    instruction : str
        Name of an instruction of ``tvm_layout_ext.intrin.INSTRUCTIONS``, or ``auto``, which takes
        one of these; or ``wgmma``, on ``sm_90a``, whose tiles have 64 rows, the columns of a block
        and 128 bytes of K (``specialize_warps``).
    multiples : sequence of int, optional
        Fill m, n and k up to multiples of these by zeros; each is a multiple of the instruction's
        tile, which is the default. A dimension of a single tile is filled up to two.
    tile : sequence of int, optional
        Rows, columns and depth of the tile of a block, in the place of ``multiples``. ``m``, ``n``
        and ``k`` then count such tiles, and ``warpgroup`` 64 of their rows each; ``auto`` takes
        ``wgmma`` where target and operands have it, and ``mma.sync`` elsewhere.
    swap : bool
        Multiply the transpose: m and a are then what else were n and b. It gives the many columns
        of a product of few rows to the instruction's 64 rows.
    scope : str
        Where the operands are staged: ``shared.dyn`` or ``shared``.
    arch : str, optional
        Architecture that must have the instruction; by default that of the target.
    """
    block = find_block(sch, block, "use_tensor_core")
    what = _read(sch, block, swap)
    gpu = architecture(own_arch(sch) if arch is None else arch)
    refused = None if is_warpgroup(instruction) else why_no_warpgroups(what, tile, gpu)
    if tile is not None:
        multiples = check_tile(tile)
        if instruction == "auto" and refused is None and not what.is_in_full:
            instruction = "wgmma"
    one = _instruction(instruction, what, multiples, gpu)
    check_loops(sch, block, what, "use_tensor_core")
    paddings = _paddings(what, one, multiples)
    if not is_one_of(scope, ("shared", "shared.dyn")):
        raise ScheduleError(f"scope is {scope!r}; operands are staged in shared or shared.dyn.")
    merged = merge_iterators(sch, block, what)
    if merged:
        what = _read(sch, block, swap)
    found = _Builder(sch, block, what, one, scope).build(paddings, merged)
    if refused and gpu.name == "sm_90a":
        sch.annotate(found.product, NOT_WARPGROUPS, refused)
    if multiples is None or tile is None:
        return found
    if isinstance(one, WarpgroupInstruction):
        found = by_warpgroups(sch, found, multiples)
    else:
        found = by_warps(sch, found, multiples, one.shape)
    return found


def _read(sch: Any, block: Any, swap: bool) -> Contraction:
    what = read_contraction(sch.get(block))
    return what.transposed if swap else what


def _instruction(name: str, what: Contraction, multiples: Any, gpu: Architecture) -> Unit:
    """Look the instruction up; ``wgmma`` has as many columns as the tile of a block."""
    if not is_warpgroup(name):
        return choose(name, what.operand, what.sums, gpu, tf32=what.tf32)
    columns = whole(multiples[1]) if isinstance(multiples, Sequence) else None
    types, columns = (what.operand, what.sums), columns or _COLUMNS
    one = choose_warpgroup(name, *types, columns, gpu, tf32=what.tf32)
    for side in () if one.takes_any_major else (what.a, what.b):
        if not side.k_major:
            raise ScheduleError(
                f"Rows of {side.buffer.name} do not lie along K; {one.name} reads {one.operand} "
                "only so: transpose it before, or multiply by mma.sync."
            )
    return one


def _paddings(what: Contraction, one: Unit, multiples: Sequence[int] | None) -> list[int]:
    wanted = one.shape if multiples is None else multiples
    if not isinstance(wanted, Sequence) or len(wanted) != 3:
        raise ScheduleError(f"multiples are {wanted!r}; three are legal, of m, n and k.")
    for dim, value, tile in zip("mnk", wanted, one.shape, strict=True):
        number = whole(value)
        if number is None or not 0 < number < 1 << 31 or number % tile:
            raise ScheduleError(
                f"The multiple of {dim} is {value!r}; {one.name} needs multiples of {tile}."
            )
    return _least_two([int(value) for value in wanted], what, one)


def _least_two(multiples: Sequence[int], what: Contraction, one: Unit) -> list[int]:
    """Double what would be filled up to one tile, where ``compute_at`` finds no iterators.

    Sums of a single step of ``wgmma`` for each of a batch are scaled and added up; no step more.
    """
    dims = zip(multiples, one.shape, what.sizes, strict=True)
    found = [2 * many if many == tile >= size else many for many, tile, size in dims]
    single = isinstance(one, WarpgroupInstruction) and what.batch and what.sizes[2] == one.shape[2]
    return [*found[:2], multiples[2]] if single else found


class _Builder:
    def __init__(self, sch: Any, block: Any, what: Contraction, one: Unit, scope: str) -> None:
        self.sch = sch
        self.block = block
        self.what = what
        self.one = one
        self.scope = scope

    def build(self, paddings: Sequence[int], merged: Sequence[Any] = ()) -> TensorCore:
        sch, what = self.sch, self.what
        sides = (what.a, what.b)
        copies = stage_operands(sch, self.block, what, paddings, merged, self.scope)
        *batch, m, n, k, product = self._tile()
        a, b = self._fragments(product, copies, sides)
        result = keep_sums(sch, product, "warp")
        if isinstance(self.one, WarpgroupInstruction):
            sch.annotate(product, WARPGROUP, self.one.name)
        else:
            sch.annotate(product, TENSOR_CORE, [multiply_name(self.one), clear_name(self.one.sums)])
        return TensorCore(
            product=product,
            batch=tuple(batch),
            m=m,
            n=n,
            k=k,
            a=copies[0],
            b=copies[1],
            a_fragment=a,
            b_fragment=b,
            result=result,
            a_k_major=what.a.k_major,
            b_k_major=what.b.k_major,
            instruction=self.one.name,
        )

    def _tile(self) -> list[Any]:
        """Split off the tiles of the instruction; the loops left, and the block of a tile."""
        *batch, m, n, k = self.sch.get_loops(self.block)
        outer, tile = blockize_tiles(self.sch, (m, n, k), self.one.shape)
        return [*batch, *outer, tile]

    def _fragments(self, product: Any, copies: Sequence[Any], sides: Any) -> list[Any]:
        """Load both operands into registers; ``wgmma`` reads them in shared memory."""
        if isinstance(self.one, WarpgroupInstruction):
            return [None, None]
        return [
            self._fragment(product, copy, matrix, side)
            for copy, matrix, side in zip(copies, "ab", sides, strict=True)
        ]

    def _fragment(self, product: Any, copy: Any, matrix: str, side: Operand) -> Any:
        sch, one = self.sch, self.one
        assert isinstance(one, Instruction)
        load = sch.cache_read(product, read_by(sch, product, copy), "warp")
        tile = (TILE, one.k) if side.k_major else (one.k, TILE)
        _, blocked = blockize_tiles(sch, sch.get_loops(load)[-2:], tile)
        intrinsic = load_name(matrix, one, self.scope, k_major=side.k_major)
        sch.annotate(blocked, TENSOR_CORE, [intrinsic])
        return blocked
