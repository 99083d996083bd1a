"""``torch_backend``: what ``torch.compile`` cuts a program into, compiled as modules."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ..checks import is_one_of
from ..errors import ScheduleError
from ..ir.diagnostics import reason
from .imported.torch_module import compile_torch
from .rule import REFUSALS

_log = logging.getLogger("tvm_layout_ext")
#: What ``options`` may hold: arguments of :func:`compile_torch`.
_OPTIONS = ("dtype", "cuda_graphs", "log", "target")
#: Where torch says of an input that it is a parameter, a buffer or another tensor of a module.
_STATIC = "_dynamo_static_input_type"


def torch_backend(
    graph: Any, examples: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile what ``torch.compile`` hands over: ``torch.compile(net, backend="tvm_layout_ext")``.

    Where this package is installed torch knows it by that name. Torch cuts a program where Python
    decides by data, and each part is compiled by :func:`compile_torch` when it is first called, for
    any size that torch found to change. Weights are constants then, those of that call, and kept
    beside torch's own. A part that cannot be compiled, or whose tensors lie on no GPU, is run by
    torch; a warning says why.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        A part, of torch's functions.
    examples : sequence
        Its first inputs.
    options : dict, optional
        ``dtype``, ``cuda_graphs``, ``log`` and ``target``, as of :func:`compile_torch`.

    Raises
    ------
    ScheduleError
        If ``options`` has others, or the compiled part is called where gradients are wanted.

    Examples
    --------
    >>> fast = torch.compile(net.eval(), backend="tvm_layout_ext")  # doctest: +SKIP
    >>> with torch.no_grad():  # doctest: +SKIP
    ...     y = fast(x.cuda())
    """
    del examples
    given = dict(options or {})
    for name in given:
        if not is_one_of(name, _OPTIONS):
            raise ScheduleError(f"options has {name!r}; {', '.join(_OPTIONS)} are legal.")
    return _Part(graph, given)


class _Part:
    """A graph of torch's, compiled when it is first called."""

    def __init__(self, graph: Any, options: dict[str, Any]) -> None:
        self.graph, self.options = graph, options
        self.call: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        if self.call is None:
            # What torch.export traces is no part of the program around.
            self.call = sys.modules["torch"].compiler.disable(self._made)(args)
        return self.call(*args)

    def _made(self, args: Sequence[Any]) -> Callable[..., Any]:
        """The compiled part, or torch's own where it cannot be."""
        torch = sys.modules["torch"]
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
            raise ScheduleError(
                "Results of a compiled module carry no gradient; call it under torch.no_grad()."
            )
        try:
            if not _are_on_gpu(tensors):
                raise ScheduleError("Its tensors lie on no GPU.")
            return _Graph(torch, self.graph, args).compiled(self.options)
        except REFUSALS as error:
            count = len(self.graph.graph.nodes)
            _log.warning("A part of %d operators is run by torch: %s", count, reason(error))
            run: Callable[..., Any] = self.graph
            return run


def _are_on_gpu(tensors: Sequence[Any]) -> bool:
    return bool(tensors) and all(one.is_cuda for one in tensors)


class _Graph:
    """A part whose module holds what is constant, and whose inputs and results are tensors."""

    def __init__(self, torch: Any, given: Any, args: Sequence[Any]) -> None:
        self.torch, self.args = torch, args
        self.module = torch.fx.GraphModule(given, copy.deepcopy(given.graph)).eval()
        nodes = self.module.graph.find_nodes(op="placeholder")
        self.places = {node.name: at for at, node in enumerate(nodes)}
        sizes = [
            node for node in nodes if not isinstance(args[self.places[node.name]], torch.Tensor)
        ]
        held = [node for node in nodes if _STATIC in (node.meta.get("tensor_dict") or ())]
        self.inputs = [node for node in nodes if node not in sizes and node not in held]
        self.held = {node.name: args[self.places[node.name]] for node in held}
        for node in sizes:
            self._measured(node)
        for node in held:
            self._kept(node)
        #: For each result its number among the tensors, or what it is else.
        self.results = self._results()
        self.module.recompile()

    def compiled(self, options: dict[str, Any]) -> Callable[..., Any]:
        """What takes all inputs, and gives all results."""
        places = [self.places[node.name] for node in self.inputs]
        dims = tuple(self._dims(node) for node in self.inputs)
        given = [self.args[at] for at in places]
        fast = compile_torch(
            self.module, given, dynamic_shapes=dims if any(dims) else None, **options
        )
        # What the part writes lies where torch has it.
        fast.buffers = {name: self.held[name] for name in fast.buffers}
        if not all(one.is_contiguous() for one in fast.buffers.values()):
            raise ScheduleError("It writes to a tensor whose elements do not lie row by row.")

        return partial(_called, fast, places, self.results)

    def _measured(self, node: Any) -> None:
        """Take a size of the tensor that has it."""
        size = node.meta.get("example_value")
        for tensor in self.inputs:
            for dim, extent in enumerate(tensor.meta["example_value"].shape):
                if str(extent) == str(size) and node.users:
                    with self.module.graph.inserting_after(self.inputs[-1]):
                        own = self.module.graph.call_method("size", (tensor, dim))
                    own.meta.update(node.meta)
                    node.replace_all_uses_with(own)
        if node.users:
            raise ScheduleError(f"No tensor has size {size}, which it reads.")
        self.module.graph.erase_node(node)

    def _kept(self, node: Any) -> None:
        """Let the module hold a tensor."""
        self.module.register_buffer(node.name, self.held[node.name].detach())
        with self.module.graph.inserting_before(node):
            own = self.module.graph.get_attr(node.name)
        node.replace_all_uses_with(own)
        self.module.graph.erase_node(node)

    def _results(self) -> list[_Result]:
        """How each result is found; the module is left with those that are tensors."""
        (output,) = self.module.graph.find_nodes(op="output")
        tensors, found = list[Any](), list[_Result]()
        for one in output.args[0]:
            if not isinstance(one, self.torch.fx.Node):
                found.append(partial(_known, one))
            elif isinstance(one.meta.get("example_value"), self.torch.Tensor):
                found.append(partial(_tensor, len(tensors)))
                tensors.append(one)
            else:
                found.append(partial(_size, *self._source(one)))
        if not tensors:
            raise ScheduleError("It gives no tensor.")
        output.args = (tuple(tensors),)
        return found

    def _source(self, node: Any) -> tuple[int, int]:
        """The input, and its dim, that a result which is no tensor is a size of."""
        if node.op != "call_method" or node.target != "size":
            raise ScheduleError(
                f"Its result {node.name} is neither a tensor nor a size of an input."
            )
        tensor, dim = node.args
        return self.places[tensor.name], dim

    def _dims(self, node: Any) -> dict[int, Any]:
        """Dims of an input that are not always the same."""
        auto, symbolic = self.torch.export.Dim.AUTO, self.torch.SymInt
        shape = node.meta["example_value"].shape
        return {dim: auto for dim, extent in enumerate(shape) if isinstance(extent, symbolic)}


#: A result, of all inputs and the tensors that were made.
_Result = Callable[[Sequence[Any], Sequence[Any]], Any]


def _called(
    fast: Callable[..., Any], places: Sequence[int], results: Sequence[_Result], *args: Any
) -> tuple[Any, ...]:
    made = fast(*(args[at] for at in places))
    return tuple(one(args, made) for one in results)


def _known(value: Any, _args: Sequence[Any], _made: Sequence[Any]) -> Any:
    return value


def _tensor(number: int, _args: Sequence[Any], made: Sequence[Any]) -> Any:
    return made[number]


def _size(place: int, dim: int, args: Sequence[Any], _made: Sequence[Any]) -> Any:
    return args[place].shape[dim]
