"""Values of a program that depend on no input, as torch computes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind


class Known:
    """Computes nodes of an exported program, if weights and numbers are all they read."""

    def __init__(self, program: Any) -> None:
        held = {**program.state_dict, **program.constants}
        inputs = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
        self._found: dict[str, Any] = {
            one.arg.name: held[one.target]
            for one in program.graph_signature.input_specs
            if one.kind in inputs and one.target in held
        }

    def value_of(self, node: Any) -> Any:
        """What a node gives, or None where an input or a random number tells."""
        if node.name in self._found:
            return self._found[node.name]
        value = None
        tags = getattr(node.target, "tags", ())
        if node.op == "call_function" and torch.Tag.nondeterministic_seeded not in tags:
            given = {one: self.value_of(one) for one in node.all_input_nodes}
            if all(one is not None for one in given.values()):
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), given.__getitem__)
                with torch.no_grad():
                    value = node.target(*args, **kwargs)
        self._found[node.name] = value
        return value
