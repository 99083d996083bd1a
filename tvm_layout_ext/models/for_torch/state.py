"""``State``: what a module of PyTorch writes, and the module in Relax."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from ...errors import ScheduleError
from ...ir.diagnostics import reason

#: Operators that stop a run where a number is not as it was when the module was exported.
_CHECKS = (
    "aten._assert_scalar.default",
    "aten._assert_tensor_metadata.default",
    "aten.sym_constrain_range_for_size.default",
)
#: What is legal where experts count their tokens.
_NO_GROUPS = (
    " Experts of transformers are compiled by with_static_cache, and after"
    ' model.set_experts_implementation("batched_mm").'
)


@dataclass
class State:
    """What a module writes: buffers in the order of inputs, and names in that of results."""

    buffers: dict[str, Any]
    written: list[str]
    in_place: frozenset[str]  #: Those whose result is the input itself
    writes_rows: bool  #: Whether functions of TIR write rows, here or elsewhere


def imported(program: Any) -> tuple[tvm.IRModule, State]:
    """A decomposed program in Relax, and its state; ScheduleError if TVM cannot import it.

    ``main`` takes the state before the inputs, and gives a tuple of the new state and the results.
    """
    # TVM's importer of torch imports torch.
    from ..imported.importer import Importer

    names = dict(program.graph_signature.buffers_to_mutate)
    outputs = {name: out for out, name in names.items()}
    specs = program.graph_signature.input_specs
    importer = Importer({x.arg.name: outputs[x.target] for x in specs if x.target in outputs})
    buffers, written = _as_inputs(program)
    _drop_checks(program.graph)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            mod = importer.from_exported_program(program, False, False, False, None)
        except Exception as error:
            how = _NO_GROUPS if "grouped_mm" in str(error) else ""
            raise ScheduleError(f"TVM cannot import the module: {reason(error)}{how}") from error
    results, spec = mod["main"].ret_ty, program.call_spec.out_spec
    tensors = [one for one in results.fields if isinstance(one, relax.TensorType)]
    if len(tensors) - len(buffers) != spec.num_leaves:
        raise ScheduleError(
            f"The module gives {spec.num_leaves} values, of which {len(tensors) - len(buffers)} are"
            " tensors; leave out what is None."
        )
    in_place = frozenset(name for out, name in names.items() if out in importer.in_place)
    return mod, State(buffers, written, in_place, importer.writes_rows)


def _drop_checks(graph: Any) -> None:
    """Leave out what only checks read: they are not kept, and TVM does not know all of it."""
    for node in [*graph.nodes]:
        if str(node.target) in _CHECKS and not node.users:
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _as_inputs(program: Any) -> tuple[dict[str, Any], list[str]]:
    """Make the buffers that a program writes inputs and results; gives values, names of results."""
    import torch
    from torch.export.graph_signature import InputKind, OutputKind

    values = {**dict(program.named_buffers()), **program.constants}
    signature, found = program.graph_signature, dict[str, Any]()
    written = {*signature.buffers_to_mutate.values()}
    for one in signature.input_specs:
        if one.kind is InputKind.BUFFER and one.target in written:
            plain = values[one.target].detach()
            found[one.target] = plain.clone(memory_format=torch.contiguous_format)
            # TVM's importer would bind it as a constant.
            program.constants.pop(one.target, None)
            one.kind, one.target = InputKind.USER_INPUT, None
    results = [one for one in signature.output_specs if one.kind is OutputKind.BUFFER_MUTATION]
    for one in results:
        one.kind = OutputKind.USER_OUTPUT
    return found, [one.target for one in results]
