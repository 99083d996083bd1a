"""``FuseWrites``: what makes rows of a cache, element by element, writes them into it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relax
from tvm.relax import dpl

from ...ir.queries import is_among
from ..bindings import Bindings
from ..relax_values import name_of

_IN_PLACE, _KIND = "call_tir_inplace", "op_pattern"
#: TVM's kind of functions that compute an element from elements, and operands that these have.
_INJECTIVE, _OPERANDS = 2, range(1, 9)


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.FuseWrites")
class FuseWrites:
    """Make one function of each :func:`.write_rows` in place and the function that makes its rows.

    Rows come from a slice of a product, or from rotary embeddings: TVM fuses nothing with what is
    written in place. What is written in place is no operand of the rows, which would be computed
    behind another write.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module whose functions are fused."""
        kinds = relax.transform.AnnotateTIROpPattern()(mod)
        makers = [
            one
            for func in mod.functions.values()
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr)
            for one in _makers(kinds, Bindings.of(func))
        ]
        if not makers:
            return mod

        def is_legal(context: relax.transform.PatternCheckContext) -> bool:
            return is_among(context.annotated_expr["rows"], makers)

        patterns = [(*_pattern(count), is_legal) for count in _OPERANDS]
        fused = relax.transform.FuseOpsByPattern(patterns)(mod)
        return relax.transform.FuseTIR()(fused)


def _makers(mod: tvm.IRModule, reader: Bindings) -> Iterator[relax.Call]:
    """Calls that make rows for nobody but what writes them, element by element."""
    writes = [var for var in reader.order if name_of(reader.bound[var]) == _IN_PLACE]
    written = [*writes, *(reader.bound[var].args[1].fields[0] for var in writes)]
    for var in writes:
        rows = reader.bound[var].args[1].fields[-1]
        maker = reader.call(rows)
        if name_of(maker) != "call_tir" or len(reader.users[rows]) > 1:
            continue
        kind = int(mod[maker.args[0]].attrs.get(_KIND, _INJECTIVE + 1))
        if kind <= _INJECTIVE and not any(is_among(x, written) for x in maker.args[1].fields):
            yield maker


def _pattern(count: int) -> tuple[str, dpl.DFPattern, dict[str, dpl.DFPattern]]:
    """Rows that a function of so many tensors makes, and what writes them."""
    rows = dpl.is_op("relax.call_tir")(
        dpl.GlobalVarPattern(),
        dpl.TuplePattern([dpl.wildcard() for _ in range(count)]),
        add_constraint=False,
    )
    written = dpl.is_op(f"relax.{_IN_PLACE}")(
        dpl.GlobalVarPattern(),
        dpl.TuplePattern([dpl.wildcard(), dpl.wildcard(), rows]),
        add_constraint=False,
    )
    return "written", written, {"rows": rows}
