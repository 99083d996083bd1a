"""``decomposed``: an exported program in core operators, each kind of operator traced once."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

#: What an exported program asserts of a tensor that a trace has proven.
_PROVEN = "aten._assert_tensor_metadata.default"
#: Layers that become steps, if torch does not take them for one of its CPU kernels.
_RECURRENT = ("aten.lstm", "aten.gru", "aten.rnn_tanh", "aten.rnn_relu")


class UntraceableError(Exception):
    """A program has what is not decomposed operator by operator; the text says what."""


def decomposed(torch: Any, program: Any, table: Mapping[Any, Any]) -> Any:
    """What ``program.run_decompositions(table)`` gives of a program of known sizes.

    That traces the whole program once more, and a model has each layer many times. Here operators
    of the same inputs are traced once, by the same decompositions, and what writes to a tensor
    gives a new one, as functionalization has it. UntraceableError says what is left to torch: as
    dynamic sizes, recurrent layers, operators with programs of their own, inputs that are written,
    and views of what is written that are read afterwards.
    """
    return _Program(torch, program, table).rewritten()


class _Program:
    """An exported program while it is rewritten."""

    def __init__(self, torch: Any, program: Any, table: Mapping[Any, Any]) -> None:
        from torch._export.utils import _collect_all_valid_cia_ops

        self.torch, self.program = torch, program
        #: Composites that stay, as resizes: those that may, and that the table leaves out.
        self.kept = {op for op in _collect_all_valid_cia_ops() if op not in table}
        # Composites are written out by torch's dispatcher, which knows of better ways for some.
        self.table = {op: how for op, how in table.items() if not self._is_composite(op)}
        aten = torch.ops.aten
        #: What stands for operators of tensors that are written.
        self.plain = {
            aten.copy_.default: partial(_copied, torch),
            aten.lift_fresh_copy.default: aten.clone.default,
        }
        self.nodes = [*program.graph.nodes]
        self.graph = torch.fx.Graph()
        #: New nodes, or what is no node, by old ones, and their fake tensors by new ones.
        self.env = dict[Any, Any]()
        self.pieces = dict[Any, Any]()
        #: Storage of new nodes: views have that of what they show.
        self.storage = dict[Any, Any]()
        #: Old nodes by the storage of the new ones that they have, or had.
        self.sharing = defaultdict[Any, list[Any]](list)
        self.last_use = {
            used: at for at, node in enumerate(self.nodes) for used in node.all_input_nodes
        }
        # What an input holds in the end is given, if it was written.
        self.last_use |= {one: len(self.nodes) for one in self.nodes if one.op == "placeholder"}

    def rewritten(self) -> Any:
        """A program whose graph has core operators alone."""
        if self.program.range_constraints:
            raise UntraceableError("sizes are dynamic")
        for at, node in enumerate(self.nodes):
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "call_function":
                self._call(at, node)
            elif node.op != "output":
                raise UntraceableError(f"a node is a {node.op}")
        signature = self._finish(self.nodes[-1])
        self.graph.eliminate_dead_code()
        new = copy.copy(self.program)
        new._graph_module = self.torch.fx.GraphModule(self.program.graph_module, self.graph)
        new._graph_signature, new._constants = signature, {**self.program.constants}
        return new

    def _placeholder(self, node: Any) -> None:
        new = self.graph.placeholder(node.name)
        # Which is another, where Python has one of its own, as input.
        new.name, new.meta = node.name, dict(node.meta)
        if not _has_known_size(new.meta.get("val")):
            raise UntraceableError("sizes are dynamic")
        self._bind(node, new)

    def _call(self, at: int, node: Any) -> None:
        if str(node.target) == _PROVEN:
            return
        if node.target.__name__ == "getitem":
            of, index = node.args
            self._bind(node, self.env[of][index])
            return
        schema = getattr(node.target, "_schema", None)
        if schema is None or not hasattr(node.target, "overloadpacket"):
            raise UntraceableError(f"{node.target} is no operator")
        if str(node.target.overloadpacket) in _RECURRENT:
            raise UntraceableError("recurrent layers are written out where torch traces gradients")
        if node.target is self.torch.ops.aten.matmul.default:
            self._check_matmul(node)
        if schema.is_mutable:
            self._write(at, node)
        else:
            target = self.plain.get(node.target, node.target)
            self._bind(node, self._traced(target, node.args, node.kwargs))

    def _check_matmul(self, node: Any) -> None:
        """Leave a product to torch that it folds, or not, by what has gradients in its trace."""
        values = [self.env[one].meta["val"] for one in node.args[:2]]
        ranks = [one.ndim for one in values]
        if max(ranks) > 2 >= min(ranks) and not values[ranks.index(max(ranks))].is_contiguous():
            raise UntraceableError("a matrix is multiplied by rows that do not lie one by one")

    def _write(self, at: int, node: Any) -> None:
        """An operator that writes to its first input, as the one that gives a new tensor."""
        written = [one.name for one in node.target._schema.arguments if _is_written(one)]
        plain = self.plain.get(node.target) or _without_writes(self.torch, node.target)
        if written != [node.target._schema.arguments[0].name] or plain is None:
            raise UntraceableError(f"{node.target} writes")
        (target, *_), kwargs = node.args, node.kwargs
        before = self.env[target]
        same = self.sharing[self._storage(before)]
        if any(self.env[old] is not before and self.last_use.get(old, -1) > at for old in same):
            raise UntraceableError(f"a view of what {node.target} writes is read")
        result = self._traced(plain, node.args, kwargs)
        if _kind(result.meta["val"]) != _kind(before.meta["val"]):
            raise UntraceableError(f"{node.target} gives another type or other strides")
        for old in [one for one in same if self.env[one] is before]:
            self._bind(old, result)
        self._bind(node, result)

    def _bind(self, old: Any, new: Any) -> None:
        """Have new nodes stand for an old one."""
        self.env[old] = new
        leaves = self.torch.utils._pytree.tree_leaves(new)
        for root in {self._storage(one) for one in leaves if isinstance(one, self.torch.fx.Node)}:
            self.sharing[root].append(old)

    def _storage(self, node: Any) -> Any:
        return self.storage.get(node, node)

    def _traced(self, target: Any, args: Any, kwargs: Any) -> Any:
        """New nodes for a call with old ones."""
        tree = self.torch.utils._pytree
        leaves, spec = tree.tree_flatten((args, kwargs))
        given = [self.env[one] if isinstance(one, self.torch.fx.Node) else one for one in leaves]
        nodes = [one for one in given if isinstance(one, self.torch.fx.Node)]
        values = [one.meta.get("val") for one in nodes]
        if not all(hasattr(one, "fake_mode") for one in values):
            raise UntraceableError(f"{target} takes what is no tensor")
        constants = [_constant(self.torch, one) for one in given]
        key = target, spec, tuple(constants), tuple(map(_kind, values))
        if key not in self.pieces:
            self.pieces[key] = piece = self._piece(target, given, spec, values)
            if not all(_has_known_size(node.meta.get("val")) for node in piece.nodes):
                raise UntraceableError("sizes are dynamic")
        return self._pasted(self.pieces[key], nodes)

    def _piece(self, target: Any, given: list[Any], spec: Any, values: list[Any]) -> Any:
        """The graph of a call, by inputs of the same kind."""
        torch = self.torch
        places = [at for at, one in enumerate(given) if isinstance(one, torch.fx.Node)]

        def call(*tensors: Any) -> Any:
            leaves = [*given]
            for at, one in zip(places, tensors, strict=True):
                leaves[at] = one
            args, kwargs = torch.utils._pytree.tree_unflatten(leaves, spec)
            return target(*args, **kwargs)

        mode = next((one.fake_mode for one in values), None) or self._fake_mode()
        with mode, torch._dispatch.python.enable_python_dispatcher():
            # Pasted nodes have one value, which a trace would take for one tensor.
            values = [_apart(torch, one) for one in values]
            stays = target in self.kept or self._is_core(target)
            if stays and isinstance(value := call(*values), torch.Tensor):
                return self._one_node(target, given, spec, value)
            make = torch.fx.experimental.proxy_tensor.make_fx
            return make(call, decomposition_table=self.table)(*values).graph

    def _one_node(self, target: Any, given: list[Any], spec: Any, value: Any) -> Any:
        """The graph of an operator that stays as it is."""
        graph = self.torch.fx.Graph()
        is_node = [isinstance(one, self.torch.fx.Node) for one in given]
        leaves = [
            graph.placeholder(f"x{at}") if found else one
            for at, (found, one) in enumerate(zip(is_node, given, strict=True))
        ]
        args, kwargs = self.torch.utils._pytree.tree_unflatten(leaves, spec)
        made = graph.call_function(target, args, kwargs)
        made.meta["val"] = value
        graph.output(made)
        return graph

    def _is_core(self, op: Any) -> bool:
        """Whether nothing writes an operator out by others."""
        if not hasattr(op, "py_kernels"):
            return False
        key = self.torch._C.DispatchKey.CompositeImplicitAutograd
        return not (op in self.table or key in op.py_kernels or self._is_composite(op))

    def _is_composite(self, op: Any) -> bool:
        key = self.torch._C.DispatchKey.CompositeImplicitAutograd
        return bool(self.torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key))

    def _fake_mode(self) -> Any:
        values = [node.meta.get("val") for node in self.nodes if node.op == "placeholder"]
        return next(one.fake_mode for one in values if hasattr(one, "fake_mode"))

    def _pasted(self, piece: Any, nodes: list[Any]) -> Any:
        inputs, env = iter(nodes), dict[Any, Any]()
        for node in piece.nodes:
            if node.op == "placeholder":
                env[node] = next(inputs)
            elif node.op == "output":
                return self.torch.fx.node.map_arg(node.args[0], env.__getitem__)
            elif node.op == "call_function":
                env[node] = new = self.graph.node_copy(node, env.__getitem__)
                self._note_storage(new)
            else:
                raise UntraceableError(f"{node.op} {node.target} is traced")
        return None

    def _note_storage(self, new: Any) -> None:
        schema = getattr(new.target, "_schema", None)
        if schema is None:  # An element of a tuple
            self.storage[new] = self._storage(new.args[0])
            return
        if schema.is_mutable:
            raise UntraceableError(f"{new.target} writes")
        if any(one.alias_info is not None for one in schema.returns):
            self.storage[new] = self._storage(new.args[0])

    def _finish(self, output: Any) -> Any:
        """Write results, buffers that were written first; the signature of them."""
        from torch.export.graph_signature import (
            InputKind,
            OutputKind,
            OutputSpec,
            TensorArgument,
        )

        old = self.program.graph_signature
        if any(one.kind is not OutputKind.USER_OUTPUT for one in old.output_specs):
            raise UntraceableError("it says already what it writes")
        placeholders = {node.name: node for node in self.nodes if node.op == "placeholder"}
        results, specs, shared = list[Any](), list[Any](), self._shared()
        for one in old.input_specs:
            node = placeholders[one.arg.name]
            if (new := self.env[node]).op == "placeholder" and new.name == node.name:
                continue
            if one.kind is not InputKind.BUFFER or one.target in shared:
                raise UntraceableError(f"it writes to {one.arg.name}")
            argument = TensorArgument(new.name)
            specs.append(OutputSpec(OutputKind.BUFFER_MUTATION, argument, one.target))
            results.append(new)
        for spec, value in zip(old.output_specs, output.args[0], strict=True):
            if isinstance(value, self.torch.fx.Node):
                new = self.env[value]
                results.append(new)
                spec = OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(new.name), spec.target)
            else:
                results.append(value)
            specs.append(spec)
        self.graph.output(tuple(results))
        signature = copy.copy(old)
        signature.input_specs, signature.output_specs = [*map(copy.copy, old.input_specs)], specs
        return signature

    def _shared(self) -> set[str]:
        """Names of parameters, buffers and constants that lie where others do."""
        held = {**self.program.state_dict, **self.program.constants}
        names = [one.target for one in self.program.graph_signature.input_specs]
        places = {
            name: _place(held[name])
            for name in names
            if isinstance(held.get(name), self.torch.Tensor)
        }
        count = Counter(places.values())
        return {name for name, place in places.items() if count[place] > 1}


def _place(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _without_writes(torch: Any, op: Any) -> Any:
    """The operator of the same name that gives a new tensor, or None."""
    space, _, name = op._schema.name.partition("::")
    if not name.endswith("_"):
        return None
    packet = getattr(getattr(torch.ops, space), name[:-1], None)
    return getattr(packet, op._overloadname, None)


def _has_known_size(value: Any) -> bool:
    values = value if isinstance(value, (tuple, list)) else [value]
    return all(isinstance(size, int) for one in values for size in getattr(one, "shape", ()))


def _copied(torch: Any, old: Any, new: Any, non_blocking: bool = False) -> Any:
    """What ``old`` holds after ``new`` is copied to it: a tensor of its own."""
    del non_blocking
    wide = new if new.shape == old.shape else torch.ops.aten.expand(new, old.shape)
    return torch.ops.aten.clone(wide) if new.dtype == old.dtype else wide.to(old.dtype)


def _kind(value: Any) -> Any:
    """What a trace depends on of an input."""
    return value.dtype, tuple(value.shape), value.stride(), value.device


def _apart(torch: Any, value: Any) -> Any:
    """A tensor of the same kind."""
    dtype, shape, stride, device = _kind(value)
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def _constant(torch: Any, leaf: Any) -> str | None:
    """An input that is no tensor; 1, True and 1.0, which are equal, read otherwise."""
    return None if isinstance(leaf, torch.fx.Node) else repr(leaf)
