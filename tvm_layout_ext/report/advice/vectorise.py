"""Advice on accesses of global memory that are narrower than their tensors allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ...ir.queries import blocks_in, substitute, thread_tag
from ...ir.rebuild import loop_with
from .trial import Advice, Question


@dataclass(frozen=True)
class _NarrowLoop:
    """A block, the loop along which its lanes lie, and the elements that a lane could move."""

    block: str
    loop: Any
    place: int  #: Of the loop, from the innermost, which is -1
    lanes: int

    @property
    def name(self) -> str:
        return str(self.loop.loop_var.name)


def advise(question: Question) -> Iterator[Advice]:
    """Give each lane a vector of neighbours, in all blocks that move too little."""
    sites = [
        a
        for a in question.report.accesses
        if a.scope == "global" and a.vector_bytes < question.widest.get(a.buffer, 0)
    ]
    sch = question.schedule()
    narrow = {
        str(a.site.block): found
        for a in sites
        if a.site.block in question.blocks
        and (found := _innermost(sch, a.site.block, question.widest[a.buffer] // a.vector_bytes))
    }
    if not narrow:
        return
    trial = question.attempt(lambda sch: _vectorised(sch, list(narrow.values())))
    if saved := question.saved(trial):
        assert trial is not None
        told = dict.fromkeys(
            f"{a.buffer} {a.vector_bytes} of {question.widest[a.buffer]}"
            for a in sites
            if a.site.block in narrow
        )
        before, after = question.now.requests(), trial.requests()
        yield Advice(
            f"A lane moves bytes of {', of '.join(told)}: vectors save "
            f"{before - after:,} of {before:,} requests",
            "\n".join(_line(question, one) for one in narrow.values()),
            saved,
        )


def _innermost(sch: Any, block: str, lanes: int) -> _NarrowLoop | None:
    """The loop of a block that ``threadIdx.x`` runs along, or its innermost, if it can be cut."""
    loops = [sch.get(loop) for loop in sch.get_loops(sch.get_sblock(block))]
    places = range(-len(loops), 0)
    bound = [place for place in places if thread_tag(loops[place]) == "threadIdx.x"]
    free = [place for place in places[-1:] if int(loops[place].kind) == tirx.ForKind.SERIAL]
    for place in [*free, *bound]:
        loop = loops[place]
        extent = loop.extent
        is_alone = len(blocks_in(loop.body)) == 1
        if isinstance(extent, tirx.IntImm) and int(extent) % lanes == 0 and is_alone:
            return _NarrowLoop(block, loop, place, lanes)
    return None


def _vectorised(sch: Any, narrow: list[_NarrowLoop]) -> tvm.IRModule:
    """Cut the loops, as TVM's ``split`` does of those that are bound to nothing yet."""
    chosen = {one.loop.loop_var.__chandle__(): one for one in narrow}

    def cut(loop: Any) -> Any:
        one = chosen.get(loop.loop_var.__chandle__())
        return loop if one is None else _cut(loop, one.lanes)

    functions = {
        gv: func.with_body(tvm_ffi.structural_map(func.body, [(tirx.For, cut)], order="post"))
        if isinstance(func, tirx.PrimFunc)
        else func
        for gv, func in sch.mod.functions.items()
    }
    return tvm.IRModule(functions, attrs=sch.mod.attrs)


def _cut(loop: Any, lanes: int) -> Any:
    """A loop of fewer iterations, each a vector of the block under it."""
    vector = tirx.Var("v", loop.loop_var.ty)
    body = substitute(loop.body, {loop.loop_var: loop.loop_var * lanes + vector})

    def around(realize: Any) -> Any:
        return tirx.For(vector, 0, lanes, tirx.ForKind.VECTORIZED, realize)

    inner = tvm_ffi.structural_map(body, [(s_tir.SBlockRealize, around)], order="post")
    return loop_with(loop, extent=int(loop.extent) // lanes, body=inner)


def _line(question: Question, one: _NarrowLoop) -> str:
    """The split to paste, of a loop told by its place: its name is none of the user's variables."""
    stage, cut = question.stage(one.block), one.lanes
    is_bound = thread_tag(one.loop) != ""
    order = f"  # before {one.name} is bound; bind loop for it" if is_bound else ""
    if question.is_te:
        axis = f"{stage}.leaf_iter_vars[{one.place}]"
        return f"loop, v = {stage}.split({axis}, factor={cut}); {stage}.vectorize(v){order}"
    loops = f"sch.get_loops({stage})[{one.place}]"
    return f"loop, v = sch.split({loops}, [None, {cut}]); sch.vectorize(v){order}"
