"""``torch_backend``: what ``torch.compile`` cuts a program into, compiled as modules."""

from __future__ import annotations

import copy
import logging
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from ...checks import is_one_of
from ...errors import ScheduleError
from ...ir.diagnostics import reason
from ...target import resolve
from ..default_schedule import DefaultSchedule
from ..quantised.pack_weights import check_weights
from .compile_torch import check_type, compile_torch
from .torch_module import ALIGNMENT, is_plain

_log = logging.getLogger("tvm_layout_ext")
#: What ``options`` may hold: arguments of :func:`compile_torch`.
_OPTIONS = ("dtype", "weights", "cuda_graphs", "log", "target")
#: Modes of torch's; by the second one launches are captured.
_MODES = ("default", _GRAPHS := "reduce-overhead")
#: Sets of weights for which a part is compiled; torch runs it of further ones.
_MOST_VERSIONS = 64
#: How often torch has changed a tensor.
_VERSION = operator.attrgetter("_version")
#: Where torch says of an input that it is a parameter, a buffer or another tensor of a module.
_STATIC = "_dynamo_static_input_type"


def torch_backend(
    graph: Any,
    examples: Sequence[Any],
    *,
    mode: str = "default",
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile what ``torch.compile`` hands over: ``torch.compile(net, backend="tvm_layout_ext")``.

    Where this package is installed torch knows it by that name. Torch cuts a program where Python
    decides by data, and each part is compiled by :func:`compile_torch` when it is first called, for
    any size that torch found to change. Weights are constants, which parts share; one is compiled
    anew for others, as of another layer of the same class, or where torch has changed them. A part
    that cannot be compiled, or whose tensors lie on no GPU, is run by torch; a warning says why.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        A part, of torch's functions.
    examples : sequence
        Its first inputs.
    mode : str, optional
        ``"reduce-overhead"`` is the option ``cuda_graphs``.
    options : dict, optional
        ``dtype``, ``weights``, ``cuda_graphs``, ``log`` and ``target``, as of
        :func:`compile_torch`.

    Raises
    ------
    ScheduleError
        If ``options`` has others, ``mode`` is another, or results of a part want gradients.

    Examples
    --------
    >>> fast = torch.compile(net.eval(), backend="tvm_layout_ext")  # doctest: +SKIP
    >>> with torch.no_grad():  # doctest: +SKIP
    ...     y = fast(x.cuda())
    """
    del examples
    if mode not in _MODES:
        raise ScheduleError(f"mode is one of {', '.join(_MODES)}, not {mode!r}.")
    given = dict(options or {}) | ({"cuda_graphs": True} if mode == _GRAPHS else {})
    for name in given:
        if not is_one_of(name, _OPTIONS):
            raise ScheduleError(f"options has {name!r}; {', '.join(_OPTIONS)} are legal.")
    # What is illegal is told at once, and no reason for torch to run all.
    check_type(given.get("dtype"))
    check_weights(given.get("weights"))
    resolve(given.get("target"))
    DefaultSchedule(given.get("log"))
    return _TorchPart(graph, given)


class _TorchPart:
    """A graph of torch's, compiled for the weights that it is called with."""

    def __init__(self, graph: Any, options: dict[str, Any]) -> None:
        self.graph, self.options = graph, options
        self.versions = list[_Version]()
        #: Places of what a module holds and somebody changes: inputs, as others are.
        self.changing = set[int]()
        self.is_torchs = False

    def __call__(self, *args: Any) -> Any:
        for one in () if self.is_torchs else self.versions:
            if one.fits(args):
                return one(*args)
        if not self.is_torchs:
            # What torch.export traces is no part of the program around.
            made = sys.modules["torch"].compiler.disable(self._made)(args)
            if made is not None:
                self.versions.append(made)
                return made(*args)
        return self.graph(*args)

    def _made(self, args: Sequence[Any]) -> _Version | None:
        """The part for what it is called with; None where torch is to run it."""
        torch = sys.modules["torch"]
        try:
            if self.versions:
                self._look_again(torch, args)
            return _Graph(torch, self.graph, args, self.changing).compiled(self.options)
        except _GradientError:
            raise
        except Exception as error:  # Torch can run it all the same.
            self.is_torchs = True
            self.versions.clear()  # And their weights
            count, why = len(self.graph.graph.nodes), reason(error)
            _log.warning("A part of %d operators is run by torch: %s", count, why)
            return None

    def _look_again(self, torch: Any, args: Sequence[Any]) -> None:
        """Take buffers that change for inputs; other parameters are those of another module."""
        for one in self.versions:
            missed = one.misses(args)
            if not any(isinstance(args[at], torch.nn.Parameter) for at in missed):
                self.changing |= missed
                self.versions.clear()
                return
        # Nobody can ask for weights again that torch has changed.
        self.versions = [one for one in self.versions if not one.constants.are_stale()]
        if len(self.versions) == _MOST_VERSIONS:
            raise ScheduleError(f"It was called with over {_MOST_VERSIONS} sets of weights.")


class _GradientError(ScheduleError):
    """Nothing that torch would run otherwise."""


@dataclass(frozen=True)
class _Constants:
    """What a module holds and its part does not write, by places of inputs, with its changes."""

    places: Sequence[int]
    tensors: Sequence[Any]
    changes: Sequence[int | None]  #: How often torch had changed each, where it counts

    def are_in(self, args: Sequence[Any]) -> bool:
        """Whether inputs are these; of 300 it takes 30 us."""
        given = (args[at] for at in self.places)
        return all(map(operator.is_, given, self.tensors)) and not self.are_stale()

    def are_stale(self) -> bool:
        """Whether torch has changed one since."""
        counted, changes = self._counted
        return [*map(_VERSION, counted)] != changes

    @cached_property
    def _counted(self) -> tuple[list[Any], list[int]]:
        pairs = zip(self.tensors, self.changes, strict=True)
        found = [(one, changes) for one, changes in pairs if changes is not None]
        return [one for one, _ in found], [changes for _, changes in found]

    def misses(self, args: Sequence[Any]) -> set[int]:
        """Places where inputs are others."""
        rows = zip(self.places, self.tensors, self.changes, _changes(self.tensors), strict=True)
        return {at for at, one, was, now in rows if args[at] is not one or was != now}


@dataclass(frozen=True)
class _Version:
    """A compiled part; ``inputs`` are places of its inputs, ``written`` those of what it writes."""

    fast: Any
    inputs: Sequence[int]
    written: Mapping[str, int]
    constants: _Constants
    results: Sequence[_Result]

    def fits(self, args: Sequence[Any]) -> bool:
        """Whether it was compiled for what a module holds, and can write where that lies."""
        return self.constants.are_in(args) and not self._unfit(args)

    def misses(self, args: Sequence[Any]) -> set[int]:
        """Places of what it was not compiled for."""
        return self.constants.misses(args) | {*self._unfit(args)}

    def _unfit(self, args: Sequence[Any]) -> list[int]:
        return [at for at in self.written.values() if not is_plain(args[at])]

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        # What the part writes lies where torch has it.
        self.fast.buffers.update({name: args[at] for name, at in self.written.items()})
        made = self.fast.leaves([args[at] for at in self.inputs])
        return tuple(one(args, made) for one in self.results)


def _changes(tensors: Sequence[Any]) -> list[int | None]:
    """How often torch has changed tensors; None of inference tensors, where it does not count."""
    return [None if one.is_inference() else _VERSION(one) for one in tensors]


def _are_on_gpu(tensors: Sequence[Any]) -> bool:
    return bool(tensors) and all(one.is_cuda for one in tensors)


class _Graph:
    """A part whose module holds what is constant, and whose inputs and results are tensors."""

    def __init__(self, torch: Any, given: Any, args: Sequence[Any], changing: set[int]) -> None:
        self.torch, self.args = torch, args
        if torch.is_autocast_enabled("cuda"):
            raise ScheduleError("It is called under torch.autocast; the option dtype does as much.")
        if not _are_on_gpu([one for one in args if isinstance(one, torch.Tensor)]):
            raise ScheduleError("Not all of its tensors lie on a GPU.")
        self.module = torch.fx.GraphModule(given, copy.deepcopy(given.graph)).eval()
        for node in self.module.graph.nodes:
            if _drops(node):
                raise ScheduleError(f"{node.name} drops elements by chance, as in training.")
            if _casts(node):
                raise ScheduleError("It has torch.autocast, whose types are others on the host.")
            _to_host(torch, node)
        nodes = self.module.graph.find_nodes(op="placeholder")
        self.places = {node.name: at for at, node in enumerate(nodes)}
        tensors = [node for node in nodes if isinstance(self._given(node), torch.Tensor)]
        held = [
            node
            for node in tensors
            if _STATIC in (node.meta.get("tensor_dict") or ())
            and self.places[node.name] not in changing
        ]
        self.inputs = [node for node in tensors if node not in held]
        self.held = {node.name: self._given(node) for node in held}
        for node in nodes:
            if node not in tensors:
                self._measured(node)
        #: How each result is found of all inputs, and of the tensors that were made.
        self.results = self._results(tensors)
        for node in held:
            self._kept(node)
        self.module.recompile()

    def _given(self, node: Any) -> Any:
        return self.args[self.places[node.name]]

    def compiled(self, options: dict[str, Any]) -> _Version:
        """The part, compiled."""
        dims = tuple(self._dims(node) for node in self.inputs)
        changes = dict(zip(self.held, _changes([*self.held.values()]), strict=True))
        fast = compile_torch(
            self.module,
            [self._given(node) for node in self.inputs],
            dynamic_shapes=dims if any(dims) else None,
            **options,
        )
        if not all(is_plain(self.held[name]) for name in fast.buffers):
            raise ScheduleError(
                "It writes to a tensor whose elements do not lie row by row from a multiple of"
                f" {ALIGNMENT} bytes."
            )
        kept = [name for name in self.held if name not in fast.buffers]
        constants = _Constants(
            [self.places[name] for name in kept],
            [self.held[name] for name in kept],
            [changes[name] for name in kept],
        )
        written = {name: self.places[name] for name in fast.buffers}
        inputs = [self.places[node.name] for node in self.inputs]
        return _Version(fast, inputs, written, constants, self.results)

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
            raise ScheduleError(f"No tensor has a size {size}, which it reads.")
        self.module.graph.erase_node(node)

    def _kept(self, node: Any) -> None:
        """Let the module hold a tensor."""
        self.module.register_buffer(node.name, self.held[node.name].detach())
        with self.module.graph.inserting_before(node):
            own = self.module.graph.get_attr(node.name)
        node.replace_all_uses_with(own)
        self.module.graph.erase_node(node)

    def _results(self, inputs: Sequence[Any]) -> list[_Result]:
        """How each result is found; the module is left with those that are tensors."""
        (output,) = self.module.graph.find_nodes(op="output")
        tensors, found = list[Any](), list[_Result]()
        for one in output.args[0]:
            value = one.meta.get("example_value") if hasattr(one, "meta") else one
            if not isinstance(one, self.torch.fx.Node):
                found.append(partial(_known, one))
            elif isinstance(value, self.torch.Tensor):
                found.append(partial(_tensor, len(tensors), _order(value)))
                tensors.append(one)
            else:
                found.append(partial(_size, *self._source(one)))
        if not tensors:
            raise ScheduleError("It gives no tensor.")
        self._check(tensors, inputs)
        output.args = (tuple(tensors),)
        return found

    def _check(self, results: Sequence[Any], inputs: Sequence[Any]) -> None:
        """Refuse results with a gradient, and views, to which others may write."""
        values = [node.meta["example_value"] for node in results]
        given = [one for one in self.args if isinstance(one, self.torch.Tensor)]
        if len({one.device for one in (*given, *values)}) > 1:
            raise ScheduleError("Its tensors lie on several devices.")
        places = [one.untyped_storage()._cdata for one in values]
        known = {node.meta["example_value"].untyped_storage()._cdata for node in inputs}
        if len({*places}) < len(places) or not known.isdisjoint(places):
            raise ScheduleError("It gives views, to which others may write.")
        if any(one.requires_grad for one in values):
            raise _GradientError(
                "Results of a compiled module carry no gradient; call it under torch.no_grad()."
            )

    def _source(self, node: Any) -> tuple[int, int]:
        """The input, and its dim, that a result which is no tensor is a size of."""
        given: list[Any] = [*node.args] if node.target == "size" else [None]
        tensor, *dims = given
        place = self.places.get(getattr(tensor, "name", ""))
        if place is None or len(dims) != 1:
            raise ScheduleError(f"Its result {node.name} is neither a tensor nor a size of one.")
        return place, dims[0]

    def _dims(self, node: Any) -> dict[int, Any]:
        """Dims of an input that are not always the same."""
        auto, symbolic = self.torch.export.Dim.AUTO, self.torch.SymInt
        shape = node.meta["example_value"].shape
        return {dim: auto for dim, extent in enumerate(shape) if isinstance(extent, symbolic)}


def _drops(node: Any) -> bool:
    """Whether an operator leaves elements out by chance."""
    named = node.kwargs
    if named.get("dropout_p") and named.get("training", True):
        return True
    if node.op != "call_function" or "dropout" not in getattr(node.target, "__name__", ""):
        return False
    trains = node.args[2] if len(node.args) > 2 else named.get("training", named.get("train", True))
    return bool(trains)


def _casts(node: Any) -> bool:
    """Whether an operator begins torch.autocast, and not an end of it."""
    return getattr(node.target, "__name__", "") == "_enter_autocast" and bool(node.args[2])


def _to_host(torch: Any, node: Any) -> None:
    """Name the host where a node names a GPU, as torch.export traces it there."""

    def named(value: Any) -> Any:
        is_gpu = isinstance(value, (str, torch.device)) and str(value).split(":")[0] == "cuda"
        return type(value)("cpu") if is_gpu else value

    if (node.op, node.target) == ("call_method", "cuda"):
        node.target, node.args, node.kwargs = "cpu", node.args[:1], {}
    node.args, node.kwargs = (
        torch.fx.node.map_aggregate(one, named) for one in (node.args, node.kwargs)
    )


def _order(value: Any) -> list[int] | None:
    """Dims of a tensor from the slowest to the fastest; None where they lie as they are counted."""
    steps = [int(getattr(getattr(one, "node", None), "hint", one)) for one in value.stride()]
    order = sorted(range(len(steps)), key=lambda dim: -steps[dim])
    return None if value.is_contiguous() or 0 in steps else order


#: A result, of all inputs and the tensors that were made.
_Result = Callable[[Sequence[Any], Sequence[Any]], Any]


def _known(value: Any, _args: Sequence[Any], _made: Sequence[Any]) -> Any:
    return value


def _tensor(
    number: int, order: Sequence[int] | None, _args: Sequence[Any], made: Sequence[Any]
) -> Any:
    """A tensor, whose dims lie in the order that torch has."""
    if order is None:
        return made[number]
    moved = made[number].permute(order).contiguous()
    return moved.permute([order.index(dim) for dim in range(len(order))])


def _size(place: int, dim: int, args: Sequence[Any], _made: Sequence[Any]) -> Any:
    return args[place].shape[dim]
