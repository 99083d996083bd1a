"""Memory of a module is allocated by a function of its own, and given to ``main``."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from tests.programs.host import CPU
from tests.programs.relaxed import relax_module
from tvm_layout_ext.models.imported.memory_apart import MEMORY, MemoryApart


def chain(rows: Any) -> tvm.IRModule:
    """Three operators in a row."""

    def build(x: Any) -> Any:
        return op.add(op.exp(op.nn.softmax(x)), relax.const(1.0))

    return relax_module(build, (rows, 64), dtype="float32")


def planned(rows: Any) -> tvm.IRModule:
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
        relax.transform.LowerAllocTensor(),
        MemoryApart(),
    ]
    with CPU:
        return tvm.transform.Sequential(passes)(chain(rows))


def test_main_allocates_nothing_of_known_size() -> None:
    mod = planned(8)
    assert "alloc_storage" not in str(mod["main"])
    storages = str(mod[MEMORY]).count("memory.alloc_storage")
    assert storages >= 2
    assert len(mod["main"].params) == 1 + storages


def test_what_has_a_size_of_its_call_stays() -> None:
    mod = planned("n")
    assert "alloc_storage" in str(mod["main"])
    assert len(mod["main"].params) == 1


def test_a_call_writes_to_the_memory_that_it_is_given() -> None:
    passes = [
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]
    after = tvm.transform.Sequential(passes)
    built = tvm.compile(planned(8), target=CPU, relax_pipeline=after)
    machine = relax.VirtualMachine(built, tvm.cpu())
    memory = machine[MEMORY]()
    x, y = (np.random.default_rng(i).standard_normal((8, 64)).astype("float32") for i in range(2))

    def wanted(value: np.ndarray) -> np.ndarray:
        powers = np.exp(value)
        return np.asarray(np.exp(powers / powers.sum(1, keepdims=True)) + 1)

    first = machine["main"](tvm.runtime.tensor(x), *memory)
    np.testing.assert_allclose(first.numpy(), wanted(x), rtol=1e-5)
    other = machine["main"](tvm.runtime.tensor(x), *machine[MEMORY]())
    machine["main"](tvm.runtime.tensor(y), *memory)
    np.testing.assert_allclose(first.numpy(), wanted(y), rtol=1e-5)
    np.testing.assert_allclose(other.numpy(), wanted(x), rtol=1e-5)
