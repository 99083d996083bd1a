"""Attention of sequences of any lengths, one behind the other, with keys beside them or in pages.

Queries of heads that share keys are rows of one tile, a power of two of them a token. Where a row's
keys end is decided at run time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm import s_tir, tirx

from ...analysis.attention import LOG2_E, Attention, Scores
from ...errors import ScheduleError
from ...gpu.hardware import Architecture
from ...gpu.warpgroups import PANEL_BYTES, WARPGROUP_ROWS, WARPGROUP_THREADS
from ...intrin import asynchronous
from ...ir.annotations import MARK
from ...ir.ops import ASSUME
from ...ir.rebuild import sequence
from ..hopper.epilogue import column_of, row_of
from ..hopper.lower_warpgroups import launched
from ..hopper.pieces import when
from .fit import keys_of
from .kernel import AttentionKernel
from .plan import PANEL, STEP, AttentionPlan, check_room
from .ragged_parts import NONE, NOTHING, RaggedParts
from .reach import Reach, Span
from .softmax import HIDDEN, LOWEST, weights_of

#: Vectors of 16 bytes of a panel's row.
_VECTORS = PANEL_BYTES // 16


@dataclass(frozen=True)
class Pages:
    """Keys and values of ``pages x 2 x groups x tokens x head``, and which pages a sequence has.

    ``last`` counts the tokens of each sequence's last page.
    """

    pages: Any
    first: Any
    numbers: Any
    last: Any

    @property
    def tokens(self) -> int:
        """Tokens of a page."""
        return int(self.pages.shape[3])


@dataclass(frozen=True)
class Ragged:
    """Keys and values of ``tokens x groups x head``; sequence ``i`` begins at ``first[i]``."""

    k: Any
    v: Any
    first: Any


@dataclass(frozen=True)
class RaggedAttention:
    """What a kernel computes."""

    q: Any  #: Of ``tokens x heads x head``
    first: Any  #: Where each sequence begins, and the last one ends; None where each has one query
    keys: Ragged | Pages
    output: Any  #: Of ``tokens x heads x head``
    #: Of ``tokens x heads``: logarithms, of base two, of the sums of the weights; or None.
    sums: Any
    causal: Any  #: Whether a query sees no keys behind its own, counted from the last one
    scale: Any  #: What scores are multiplied by
    #: Keys of a tile, and warpgroups that multiply; 0 leaves them to the model.
    tile: tuple[int, int] = (0, 0)

    @property
    def groups(self) -> int:
        """Heads of keys."""
        keys = self.keys
        return int(keys.pages.shape[2] if isinstance(keys, Pages) else keys.k.shape[1])

    @property
    def sides(self) -> tuple[Any, Any]:
        """Where keys and values are."""
        keys = self.keys
        return (keys.pages, keys.pages) if isinstance(keys, Pages) else (keys.k, keys.v)

    @property
    def shared(self) -> int:
        """Heads of queries that share keys."""
        return int(self.q.shape[1]) // self.groups

    @property
    def wide(self) -> int:
        """Rows of a token: what heads do not fill is computed for nobody."""
        return 1 << (self.shared - 1).bit_length()

    @property
    def sequences(self) -> Any:
        """How many sequences there are."""
        return self.q.shape[0] if self.first is None else self.first.shape[0] - 1

    def plan(self) -> AttentionPlan:
        """Tiles, stages and warpgroups of the kernel."""
        depth, width = int(self.q.shape[2]), int(self.output.shape[2])
        row, key, inside, column = (tirx.Var(name, "int32") for name in ("m", "n", "d", "x"))
        total, zero = tirx.Var("mean", "float32"), tirx.const(0, "int32")
        mean = total.astype(str(self.output.dtype))
        k, v = (tirx.BufferLoad(one, [key] + [zero] * (len(one.shape) - 1)) for one in self.sides)
        one = Attention(
            name="ragged",
            batch=(),
            row=row,
            key=key,
            depth=inside,
            column=column,
            sizes=(WARPGROUP_ROWS, PANEL, depth, width),
            q=tirx.BufferLoad(self.q, [row, zero, inside]),
            k=k,
            v=v,
            scores=Scores(1.0),
            total=total,
            store=tirx.BufferStore(self.output, mean, [row, zero, column]),
            places=(),
        )
        keys, consumers = self.tile
        keys = keys or keys_of(depth, width)
        return AttentionPlan(one, keys, 2, consumers or (1 if self.first is None else 2))


class RaggedKernel(AttentionKernel):
    """Writes the roles of a kernel; with ``parts`` several blocks share the keys of a tile."""

    def __init__(
        self,
        what: RaggedAttention,
        plan: AttentionPlan,
        maps: dict[str, Any],
        shared: RaggedParts | None = None,
    ) -> None:
        super().__init__(plan, maps)
        self.what, self.split = what, shared
        names = ("sequence", "group", "start", "queries", "length", "ahead", "first_page")
        self.sequence, self.group, self.start, self.queries, self.length, self.ahead, self.page = (
            tirx.Var(name, "int32") for name in names
        )
        self.found = tirx.decl_buffer((2,), "int32", "found", scope="local")
        self.last, self.whole = (tirx.Var(name, "int32") for name in ("last_key", "whole"))
        first, end = self.tile.first, self.tile.end
        rest = (Span(first + 1, self.whole, False), Span(self.whole, end, True))
        self.tile = replace(self.tile, reach=Reach(first, end, True, rest))

    @property
    def tokens(self) -> int:
        """Queries of a tile, each with all heads that share keys."""
        return self.plan.rows // self.what.wide

    @property
    def blocks(self) -> Any:
        """Blocks that are launched: of tiles as many as there may be."""
        what = self.what
        if what.first is None:
            return what.sequences * what.groups * (1 if self.split is None else self.split.count)
        tiles = (what.q.shape[0] + (self.tokens - 1)) // self.tokens + what.sequences
        return tiles * what.groups

    # Which tile a block has.

    def _place(self) -> list[Any]:
        what = self.what
        made = [tirx.AllocBuffer(self.found), *self._find()]
        made.append(tirx.Bind(self.group, self._tile() % what.groups))
        made.append(tirx.Bind(self.sequence, self.found[0]))
        return made

    def _find(self) -> list[Any]:
        """Find sequence and tile; the sequence is behind the last one where there is none."""
        what, number = self.what, self._tile() // self.what.groups
        if what.first is None:
            return [self._note(0, number), self._note(1, tirx.const(0, "int32"))]
        at, count = (tirx.Var(name, "int32") for name in ("at", "tiles"))
        tiles = (what.first[at + 1] - what.first[at] + (self.tokens - 1)) // self.tokens
        here = self.found[1] < count
        step = [
            tirx.Bind(count, tiles),
            tirx.IfThenElse(
                here,
                # Tiles of the last queries see the most keys, and are first.
                sequence([self._note(0, at), self._note(1, count - 1 - self.found[1])]),
                self._note(1, self.found[1] - count),
            ),
        ]
        body = when(self.found[0].equal(what.sequences), *step)
        loop = tirx.For(at, 0, what.sequences, tirx.ForKind.SERIAL, body, None, {})
        return [self._note(0, what.sequences), self._note(1, number), loop]

    def _tile(self) -> Any:
        """Number of a tile and its group; parts of one are neighbours."""
        return self.block if self.split is None else self.block // self.split.count

    def _note(self, which: int, value: Any) -> Any:
        return tirx.BufferStore(self.found, value, [which])

    def _roles(self) -> Any:
        what = self.what
        roles: Any = super()._roles()
        if self.split is not None:
            roles = tirx.IfThenElse(
                self.tile.first < self.tile.end, roles, sequence(self._leave_nothing())
            )
        return when(self.sequence < what.sequences, *self._lengths(), roles)

    def _lengths(self) -> list[Any]:
        """Name where queries and keys begin, how many there are, and which tiles of keys count."""
        what, at, keys, tile = self.what, self.sequence, self.plan.keys, self.tile
        begin, count = at, tirx.const(1, "int32")
        if what.first is not None:
            begin, count = what.first[at], what.first[at + 1] - what.first[at]
        if isinstance(what.keys, Pages):
            pages = what.keys.first[at + 1] - what.keys.first[at]
            length = (pages - 1) * what.keys.tokens + what.keys.last[at]
            length = tirx.if_then_else(pages > 0, length, 0)
            page = what.keys.first[at]
        else:
            length, page = what.keys.first[at + 1] - what.keys.first[at], what.keys.first[at]
        ahead = tirx.if_then_else(what.causal != 0, self.length - self.queries, self.length)
        least = self._last_of(self._first_query()) + 1
        most = self._last_of(self._first_query() + (self.tokens - 1))
        begin_at, end = tirx.const(0, "int32"), tirx.max(most, 0) // keys + 1
        if self.split is not None:
            each = (end + self.split.count - 1) // self.split.count
            begin_at = self.block % self.split.count * each
            end = tirx.min(end, begin_at + each)
        return [
            tirx.Bind(tile.first_row, self.found[1] * self.plan.rows),
            tirx.Bind(self.start, begin),
            tirx.Bind(self.queries, count),
            tirx.Bind(self.length, length),
            tirx.Bind(self.page, page),
            tirx.Bind(self.ahead, ahead),
            tirx.Bind(tile.first, begin_at),
            tirx.Bind(tile.end, end),
            tirx.Bind(
                self.whole, tirx.max(tirx.min(least // keys, self.tile.end), self.tile.first + 1)
            ),
        ]

    def _last_of(self, query: Any) -> Any:
        """The last key that a query of the sequence sees."""
        return tirx.min(query + self.ahead, self.length - 1)

    # What it loads.

    def _load(
        self, side: str, at: Any, barrier: tuple[Any, Any], first: Any, column: Any = 0
    ) -> list[Any]:
        what, made = self.what, list[Any]()
        if side == "q":
            token = self.start + self._first_query()
            rows, boxes = self.plan.rows, [(0, [self.group * what.shared, token])]
        elif isinstance(what.keys, Ragged):
            rows, boxes = self.plan.keys, [(0, [self.group, self.page + first])]
        else:
            rows, boxes = self.plan.keys, list[Any]()
            for i in range(rows // what.keys.tokens):
                number = tirx.Var("page", "int32")
                made.append(tirx.Bind(number, self._page(what.keys, first // what.keys.tokens + i)))
                place = [tirx.const(0, "int32"), self.group, tirx.const(int(side == "v"), "int32")]
                boxes.append((i * what.keys.tokens, [*place, number]))
        for panel in range(self.plan.panels[side == "v"]):
            for row, place in boxes:
                inside = at + (panel * rows + row) * PANEL_BYTES
                pointer = self.arena.access_ptr("w", offset=inside)
                where = [tirx.const(panel * PANEL, "int32"), *place]
                made.append(asynchronous.load_box(pointer, self.maps[side], where, *barrier))
        return made

    def _page(self, keys: Pages, number: Any) -> Any:
        """Number of a page of a sequence; of what lies behind its last one any page."""
        count = keys.first[self.sequence + 1] - self.page
        return tirx.if_then_else(number < count, keys.numbers[self.page + number], 0)

    # What becomes of scores.

    def _weigh(self, j: Any, it: Any, masked: bool) -> list[Any]:
        rows, made = self.rows, list[Any]()
        if masked:
            here = j * self.plan.keys + column_of(self.thread, 0)
            for half in range(2):
                last = self._last_of(self._row(half) // self.what.wide + self._first_query())
                made.append(tirx.BufferStore(rows.last, last - here, [half]))
            for i in range(self.plan.keys // 2):
                seen = i // 4 * 8 + i % 2 <= rows.last[i // 2 % 2]
                kept = tirx.Select(seen, rows.scores[i], tirx.const(HIDDEN, "float32"))
                made.append(tirx.BufferStore(rows.scores, kept, [i]))
        return made + weights_of(rows, self.what.scale * tirx.const(LOG2_E, "float32"))

    def _clean(self, stage: Any) -> list[Any]:
        """Zero the last tile's rows behind the last key: times a weight of zero, NaN would stay."""
        plan, threads = self.plan, self.plan.consumers * WARPGROUP_THREADS
        begin = plan.q_bytes + plan.stages * plan.stage_bytes[0] + stage * plan.stage_bytes[1]
        turn, v = tirx.Var("turn", "int32"), tirx.Var("v", "int32")
        vector = turn * threads + self.thread
        row = vector // _VECTORS % plan.keys
        zero = tirx.const(0, "uint32")
        store = tirx.BufferStore(self.words, zero, [begin // 4 + vector * 4 + v])
        wide = tirx.For(v, 0, 4, tirx.ForKind.VECTORIZED, store, None, {})
        body = when(row >= self.length - (self.tile.end - 1) * plan.keys, wide)
        turns = plan.keys * _VECTORS * plan.panels[1] // threads
        made = [
            tirx.DeclBuffer(self.words, data=self.arena.data),
            tirx.For(turn, 0, turns, tirx.ForKind.SERIAL, body, None, {}),
            asynchronous.fence_shared(),
            asynchronous.named_barrier(tirx.const(1, "int32"), threads),
        ]
        return [when(self.length < self.tile.end * plan.keys, *made)]

    def _first_query(self) -> Any:
        return self.tile.first_row // self.what.wide

    def _row(self, half: int) -> Any:
        """A row of a thread, of the tile's."""
        group = self.thread // WARPGROUP_THREADS
        return group * WARPGROUP_ROWS + row_of(self.thread, half)

    # What it stores.

    def _finish(self) -> list[Any]:
        what, made = self.what, list[Any]()
        for half in range(2):
            row = self._row(half)
            # A register: TVM writes what is bound to a name out wherever it is used.
            last = self._last_of(self._first_query() + row // what.wide)
            made.append(tirx.BufferStore(self.rows.last, last, [half]))
            has_keys = self.rows.last[half] >= 0
            query, head = self._first_query() + row // what.wide, row % what.wide
            place = [self.start + query, self.group * what.shared + head]
            is_own = tirx.all(head < what.shared, query < self.queries)
            stores = []
            for number in range(2 * half, self.plan.attention.sizes[3] // 2, 4):
                v = tirx.Var("v", "int32")
                column = number // 4 * 8 + column_of(self.thread, 0)
                mean = self.rows.means[number + v] * self.rows.factors[half]
                if self.split is not None:
                    at = [self._part(place), column + v]
                    store = tirx.BufferStore(self.split.means, mean, at)
                    stores.append(tirx.For(v, 0, 2, tirx.ForKind.VECTORIZED, store, None, {}))
                    continue
                value = tirx.if_then_else(has_keys, mean, NONE)
                store = tirx.BufferStore(
                    what.output, value.astype(str(what.output.dtype)), [*place, column + v]
                )
                stores.append(tirx.For(v, 0, 2, tirx.ForKind.VECTORIZED, store, None, {}))
            leads = (self.thread % 4).equal(0)
            if self.split is not None:
                total = tirx.if_then_else(
                    has_keys, self.rows.sums[half], tirx.const(0.0, "float32")
                )
                known = self._known(place, self.rows.shifts[half], total)
                stores.append(when(leads, *known))
            elif what.sums is not None:
                known = self.rows.shifts[half] + tirx.log2(self.rows.sums[half])
                known = tirx.if_then_else(has_keys, known, tirx.const(NOTHING, "float32"))
                stores.append(when(leads, tirx.BufferStore(what.sums, known, place)))
            made.append(when(is_own, *stores))
        return made

    # Parts of the keys.

    def _part(self, place: list[Any]) -> Any:
        assert self.split is not None
        query, head = place
        row = query * int(self.what.q.shape[1]) + head
        return row * self.split.count + self.block % self.split.count

    def _known(self, place: list[Any], shift: Any, total: Any) -> list[Any]:
        assert self.split is not None
        values = enumerate((shift, total))
        return [
            tirx.BufferStore(self.split.rows, value, [self._part(place), i]) for i, value in values
        ]

    def _leave_nothing(self) -> list[Any]:
        """What a part without keys leaves; means that weigh nothing must be numbers, too."""
        what = self.what
        assert self.split is not None
        place = [self.start, self.group * what.shared + self.thread]
        known = self._known(place, tirx.const(LOWEST, "float32"), NONE)
        return [when(self.thread < what.shared, *known)]


def _check_shapes(what: RaggedAttention) -> None:
    """Refuse heads and pages of sizes that are symbolic, or that do not go together."""
    keys = what.keys
    sizes = [*what.q.shape[1:], *what.output.shape[1:]]
    sizes += [n for one in what.sides for n in one.shape[1:]]
    if not all(isinstance(n, tirx.IntImm) for n in sizes):
        raise ScheduleError("Heads or pages are of symbolic sizes.")
    heads, depth = map(int, what.q.shape[1:])
    width = int(what.output.shape[2])
    inner = [int(one.shape[-1]) for one in what.sides]
    if inner != [depth, width] or heads % what.groups or what.wide > WARPGROUP_ROWS:
        raise ScheduleError(
            f"{heads} heads of {depth} and {width} columns do not share {what.groups} of "
            f"{inner[0]} and {inner[1]}, at most {WARPGROUP_ROWS} each."
        )
    if any(n % STEP or n < PANEL for n in (depth, width)):
        raise ScheduleError(
            f"Heads of {depth} and {width} columns are no multiples of {STEP}, or narrower than "
            f"{PANEL}."
        )
    if isinstance(keys, Pages) and (keys.tokens % 8 or what.plan().keys % keys.tokens):
        raise ScheduleError(f"Pages of {keys.tokens} tokens fill no tile of {what.plan().keys}.")


def _launched(kernel: RaggedKernel) -> Any:
    grid = kernel.blocks, kernel.plan.threads
    return launched(kernel.body(), kernel.block, kernel.thread, grid)


def with_kernel(func: tirx.PrimFunc, what: RaggedAttention, gpu: Architecture) -> tirx.PrimFunc:
    """A function of the same parameters that is the kernel, its launch and what the host does.

    Raises ScheduleError if the kernel does not take its heads or pages.
    """
    _check_shapes(what)
    plan = what.plan()
    check_room(plan, gpu)
    keys = what.keys
    is_paged = isinstance(keys, Pages)
    box = (PANEL, keys.tokens, 1, 1, 1) if isinstance(keys, Pages) else (PANEL, 1, plan.keys)
    boxes: dict[str, tuple[Any, tuple[int, ...]]] = {
        "q": (what.q, (PANEL, what.wide, plan.rows // what.wide)),
        **{side: (one, box) for side, one in zip("kv"[: 2 - is_paged], what.sides, strict=False)},
    }
    maps, host = {}, []
    for side, (buffer, sizes) in boxes.items():
        maps[side], statements = asynchronous.tensor_map(buffer, list(buffer.shape), sizes)
        host += statements
    maps.setdefault("v", maps["k"])
    launch = _launched(RaggedKernel(what, plan, maps))
    if what.first is None and isinstance(keys, Pages):
        tiles = keys.numbers.shape[0] * keys.tokens // plan.keys
        parts = RaggedParts.of(what.output, what.sums, what.groups, tiles)
        both = sequence([_launched(RaggedKernel(what, plan, maps, parts)), parts.combine()])
        held = s_tir.SBlock([], [], [], "parts", both, None, [parts.means, parts.rows])
        always = tirx.const(True, "bool")
        launch = tirx.IfThenElse(parts.count > 1, s_tir.SBlockRealize([], always, held), launch)
    # Maps hold addresses: pages begin where their buffer does.
    offsets = [one.ty.elem_offset for one in what.sides if isinstance(one.ty.elem_offset, tirx.Var)]
    known = [tirx.call_intrin("bool", ASSUME, offset.equal(0)) for offset in offsets[:1]]
    root = s_tir.SBlock([], [], [], "root", sequence([*map(tirx.Evaluate, known), *host, launch]))
    body = s_tir.SBlockRealize([], tirx.const(True, "bool"), root)
    return func.with_body(body).with_attr(MARK, 1)
