"""``exported``: a module of PyTorch as torch's own program of operators."""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from ...errors import ScheduleError
from ...ir.diagnostics import reason
from .decompose import UntraceableError, decomposed

_log = logging.getLogger("tvm_layout_ext")
#: Torch's option by which conditions of sizes are asserted where they are not proven.
_ASSERTED = "prefer_deferred_runtime_asserts_over_guards"
#: Torch's function that writes out a layer of an LSTM.
_ONE_LAYER = "one_layer_lstm"


def exported(
    module: Any,
    args: Any,
    kwargs: Any = None,
    dynamic_shapes: Any = None,
) -> Any:
    """A module as a decomposed program on the host; ScheduleError, a sentence, if torch cannot."""
    try:
        import torch
    except ImportError as error:
        raise ScheduleError(
            f"compile_torch exports by torch, which is not here: {error}"
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise ScheduleError(f"compile_torch takes a torch.nn.Module, not {type(module).__name__}.")
    if not isinstance(args, tuple | list):
        what = type(args).__name__
        raise ScheduleError(f"args are the module's inputs in a tuple, as (x,), not a {what}.")
    if not isinstance(kwargs, Mapping | None):
        what = type(kwargs).__name__
        raise ScheduleError(f"kwargs are inputs by their names in a dict, not a {what}.")
    args, kwargs = tuple(args), dict(kwargs or {})
    if module.training:
        raise ScheduleError("The module is in training; call its eval() before.")
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    if not leaves:
        raise ScheduleError("The module is given no tensor, so that nothing is to be compiled.")
    for one in leaves:
        if not isinstance(one, torch.Tensor):
            raise ScheduleError(
                f"An argument is {one!r}, no tensor; make it an attribute of the module, or leave"
                " it out."
            )
    tensors = (*module.parameters(), *module.buffers())
    args, kwargs = torch.utils._pytree.tree_map(lambda one: one.cpu(), (args, kwargs))
    with torch.no_grad(), _without_fast_path(torch), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if any(one.device.type != "cpu" for one in tensors):
                module = _on_host(torch, module)
            given = {"args": args, "kwargs": kwargs, "dynamic_shapes": dynamic_shapes}
            program = _decomposed(torch, module, given)
        except Exception as error:
            why = f"{reason(error)}{_advice(error)}"
            raise ScheduleError(f"torch.export refuses the module: {why}") from error
    if any("batch_norm_legit_functional" in str(node.target) for node in program.graph.nodes):
        raise ScheduleError(
            "A batch norm of the module counts in training; call its eval() before."
        )
    if written := getattr(program.graph_signature, "parameters_to_mutate", None):
        raise ScheduleError(
            f"The module writes to its parameters {', '.join(written.values())}; make them buffers."
        )
    if written := program.graph_signature.user_inputs_to_mutate:
        raise ScheduleError(
            f"The module writes to its inputs {', '.join(written.values())}; write to a buffer that"
            " it has by register_buffer, or return the new value."
        )
    return program


def _on_host(torch: Any, module: Any) -> Any:
    """A copy of a module on the host, without another one on its GPU."""

    def moved(tensor: Any) -> Any:
        plain = tensor.detach().cpu()
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        return torch.nn.Parameter(plain, requires_grad=False) if is_parameter else plain

    tensors = (*module.parameters(), *module.buffers())
    return copy.deepcopy(module, {id(one): moved(one) for one in tensors}).cpu()


def _decomposed(torch: Any, module: Any, given: dict[str, Any]) -> Any:
    """A module exported in operators that TVM has.

    Torch 2.13 writes attention out by another order of dims than that of its own kernel, whose
    results are then not the views that GPT-2 takes of them; its plain attention has one order.
    Torch 2.11 finds conditions of sizes that it can neither prove nor drop, as of Llama's strides
    or of a max pool's rounding; these become assertions, which :class:`LegalSizes` checks. And it
    loses the numbers of an assertion on what tensors hold, as D-FINE has it.
    """
    how: Any = nullcontext()
    program = None
    try:
        program = torch.export.export(module, **given)
        return _in_operators(torch, program)
    except Exception as error:
        if "Cannot view a tensor" in str(error):
            how = torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH])
        elif program is not None and "is not tracked with proxy" in str(error):
            return _in_operators(torch, _without_checks(program))
        elif _has_open_conditions(torch, error):
            given = given | {_ASSERTED: True}
        else:
            raise
    with how:
        return _in_operators(torch, torch.export.export(module, **given))


def _in_operators(torch: Any, program: Any) -> Any:
    """An exported program in torch's core operators, beside instance norms that count themselves.

    Torch takes their images for channels of one, which no layout passes. Norms that keep statistics
    are torch's, all of them where there is one.
    """
    table, norm = torch.export.default_decompositions(), torch.ops.aten.instance_norm.default
    graphs = (one.graph for one in program.graph_module.modules() if hasattr(one, "graph"))
    norms = [node for graph in graphs for node in graph.nodes if node.target is norm]
    if all(node.args[3:6] == (None, None, True) for node in norms):
        table.pop(norm, None)
    with _states_of_lstms(torch):
        try:
            return decomposed(torch, program, dict(table.items()))
        except UntraceableError as error:
            _log.info("Torch traces the whole program once more: %s", reason(error))
            return program.run_decompositions(table)
        except Exception as error:  # If it is torch's own, torch raises it again.
            found = program.run_decompositions(table)
            what = f"{type(error).__name__}: {reason(error)}"
            _log.warning("Torch traced the whole program once more, after %s", what)
            return found


@contextmanager
def _states_of_lstms(torch: Any) -> Iterator[None]:
    """Let an LSTM end in states of two dims; torch 2.11 writes it out with one more.

    Who takes the last layer's state, as a classifier does, would go on with it.
    """
    written = torch._decomp.decompositions
    before = getattr(written, _ONE_LAYER, None)
    if before is None:
        yield
        return

    def layer(*given: Any, **named: Any) -> Any:
        out, states = before(*given, **named)
        return out, tuple(one.reshape(one.shape[-2:]) for one in states)

    setattr(written, _ONE_LAYER, layer)
    try:
        yield
    finally:
        setattr(written, _ONE_LAYER, before)


def _without_checks(program: Any) -> Any:
    """A program that asserts nothing of what a tensor holds; no kernel could stop there."""
    for node in [one for one in program.graph.nodes if "_assert_scalar" in str(one.target)]:
        if not all(map(_is_of_inputs, node.all_input_nodes)):
            program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program


def _is_of_inputs(node: Any) -> bool:
    """Whether a number is computed from sizes of inputs alone."""
    is_size, given = "sym_size" in str(node.target), node.all_input_nodes
    of_tensors = [one for one in given if hasattr(one.meta.get("val"), "shape")]
    if of_tensors:
        return is_size and all(one.op == "placeholder" for one in of_tensors)
    return all(map(_is_of_inputs, given))


def _has_open_conditions(torch: Any, error: Exception) -> bool:
    """Whether sizes do not meet a condition, for which torch has no other range to suggest."""
    can_assert = _ASSERTED in inspect.signature(torch.export.export).parameters
    return can_assert and "Constraints violated" in str(error) and not _advice(error)


def _advice(error: Exception) -> str:
    """What torch says that dynamic sizes have to be, in a line."""
    lines = str(error).partition("Suggested fixes:")[2].strip().partition("\n\n")[0].splitlines()
    return f" It suggests {'; '.join(map(str.strip, lines))}." if lines else ""


@contextmanager
def _without_fast_path(torch: Any) -> Iterator[None]:
    """Export an encoder's layers as operators; together they are one that TVM does not know."""
    backend = torch.backends.mha
    before = backend.get_fastpath_enabled()
    backend.set_fastpath_enabled(False)
    try:
        yield
    finally:
        backend.set_fastpath_enabled(before)
