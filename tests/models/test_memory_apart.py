"""Memory and weights of a module are given to ``main``, and workspaces kept for a graph."""

from __future__ import annotations

import ctypes
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from tests.programs.host import CPU
from tests.programs.relaxed import relax_module
from tvm_layout_ext.models.for_torch.memory_apart import MEMORY, MemoryApart
from tvm_layout_ext.models.for_torch.weights_apart import WeightsApart
from tvm_layout_ext.models.for_torch.workspaces import keep_workspaces


def chain(rows: Any) -> tvm.IRModule:
    """Three operators in a row."""

    def build(x: Any) -> Any:
        return op.add(op.exp(op.nn.softmax(x)), relax.const(1.0))

    return relax_module(build, (rows, 64), dtype="float32")


def planned(mod: tvm.IRModule, *passes: Any) -> tvm.IRModule:
    """A module after passes that follow the plan of its memory."""
    before = [
        relax.transform.LegalizeOps(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
        relax.transform.LowerAllocTensor(),
    ]
    with CPU:
        return tvm.transform.Sequential([*before, *passes])(mod)


def machine_of(mod: tvm.IRModule) -> Any:
    """What runs a planned module."""
    after = [
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]
    built = tvm.compile(mod, target=CPU, relax_pipeline=tvm.transform.Sequential(after))
    return relax.VirtualMachine(built, tvm.cpu())


def test_main_allocates_nothing_of_known_size() -> None:
    mod = planned(chain(8), MemoryApart())
    assert "alloc_storage" not in str(mod["main"])
    storages = str(mod[MEMORY]).count("memory.alloc_storage")
    assert storages >= 2
    assert len(mod["main"].params) == 1 + storages


def test_what_has_a_size_of_its_call_stays() -> None:
    mod = planned(chain("n"), MemoryApart())
    assert "alloc_storage" in str(mod["main"])
    assert len(mod["main"].params) == 1


def test_a_call_writes_to_the_memory_that_it_is_given() -> None:
    machine = machine_of(planned(chain(8), MemoryApart()))
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


def by_constants(weight: np.ndarray) -> tvm.IRModule:
    """Two products by a constant, plus a small one."""
    constant, small = relax.const(weight), relax.const(np.arange(128, dtype="float32"))

    def build(x: Any) -> Any:
        return op.add(op.matmul(op.matmul(x, constant), constant), small)

    return relax_module(build, (4, 128), dtype="float32")


def test_large_constants_are_parameters_and_small_ones_stay() -> None:
    x, weight = (np.random.default_rng(i).standard_normal((128, 128)) for i in range(2))
    x, weight = x[:4].astype("float32"), weight.astype("float32")
    apart = WeightsApart()
    mod = planned(by_constants(weight), apart, MemoryApart())
    (found,) = apart.weights
    np.testing.assert_array_equal(found.numpy(), weight)
    machine = machine_of(mod)
    got = machine["main"](tvm.runtime.tensor(x), found, *machine[MEMORY]()).numpy()
    np.testing.assert_allclose(got, x @ weight @ weight + np.arange(128), rtol=1e-3, atol=1e-3)


def taken(count: int) -> set[int]:
    """Workspaces of a CPU, whose pool is as that of a GPU, as a function takes them."""
    runtime, cpu = ctypes.CDLL(None), 1
    take, give = runtime.TVMBackendAllocWorkspace, runtime.TVMBackendFreeWorkspace
    take.restype = ctypes.c_void_p
    take.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_int)
    give.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    found = [take(cpu, 0, 1 << 20, 0, 8) for _ in range(count)]
    for one in found:
        give(cpu, 0, one)
    return {*found}


class Owner:
    """Who captured a call."""


def test_workspaces_of_a_graph_go_to_nobody_else() -> None:
    used = taken(3)
    assert taken(3) == used
    owner = Owner()
    keep_workspaces(owner, 0, kind=1)
    assert taken(3).isdisjoint(used)
    del owner
    gc.collect()
    assert used <= taken(24)


def test_workspaces_of_dead_graphs_hide_none() -> None:
    with ThreadPoolExecutor(1) as other:  # A thread begins with no workspace.
        assert other.submit(_kept_behind_dead_ones).result()


def _kept_behind_dead_ones() -> bool:
    """Whether those in use are kept where the pool has many that dead graphs gave back."""
    for _ in range(3):
        owners = [Owner(), Owner()]
        for one in owners:
            taken(2)
            keep_workspaces(one, 0, kind=1)
        del owners, one
        gc.collect()
    used, owner = taken(2), Owner()
    keep_workspaces(owner, 0, kind=1)
    return taken(12).isdisjoint(used)


def test_a_graph_may_end_in_another_thread() -> None:
    """A thread may have the number of one that has ended, and no workspace of it."""
    owners = list[Owner]()

    def capture() -> None:
        owners.append(Owner())
        keep_workspaces(owners[0], 0, kind=1)

    for work in (capture, owners.clear, gc.collect):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert not owners
