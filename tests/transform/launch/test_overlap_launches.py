"""The second kernel of a function is launched while the first one ends, and waits for it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, s_tir, te, tirx

import tvm_layout_ext as tlx
from tests.programs.relaxed import relax_module
from tests.programs.running import gives
from tests.programs.stages import chain, elementwise
from tvm_layout_ext import decisions
from tvm_layout_ext.build import device_program
from tvm_layout_ext.ir.annotations import CONSTANTS, IN_SEQUENCE
from tvm_layout_ext.schedules.column_sum import compute as column_sum
from tvm_layout_ext.simulate import run as run_module
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.simulate.compile import kernel as kernel_module

TAG = "tirx.use_programtic_dependent_launch"
CONTROL = "tirx.ptx.griddepcontrol"
VALUE = np.random.default_rng(0).integers(-8, 8, (4, 256)).astype("float32")


def two_kernels(*, ours: bool) -> s_tir.Schedule:
    A, _, C, _ = chain(4, 256)
    sch = s_tir.Schedule(te.create_prim_func([A, C]))
    for name in ("B", "C"):
        if ours:
            sch.auto_coalesce(name)
        else:
            i, j = sch.get_loops(sch.get_sblock(name))
            sch.bind(i, "blockIdx.x")
            sch.bind(j, "threadIdx.x")
    return sch


def tags(kernel: tirx.PrimFunc) -> list[str]:
    return [str(tag) for tag in kernel.attrs["tirx.kernel_launch_params"]]


def controls(kernel: tirx.PrimFunc) -> list[str]:
    """What a kernel says about other launches, in its order."""
    return re.findall(r'griddepcontrol\("(\w+)"', str(kernel))


def waits_first(kernel: tirx.PrimFunc) -> bool:
    return str(kernel.body).startswith('T.ptx.griddepcontrol("wait"')


def waits(kernel: tirx.PrimFunc) -> bool:
    head = str(kernel.body).find("griddepcontrol")
    first = min(i for i in (str(kernel.body).find(name) for name in ("B[", "B_1[", "C[")) if i >= 0)
    return 0 <= head < first


def test_only_the_follower_waits_and_before_anything_else() -> None:
    with decisions.collect() as noted:
        first, second = device_program(two_kernels(ours=True)).kernels.values()
    assert [d.subject for d in noted if d.maker == "OverlapLaunches"] == ["main_kernel_1"]
    assert controls(first) == ["launch_dependents"]
    assert not waits_first(first)
    assert TAG not in tags(first)
    assert waits(second)
    assert waits_first(second)
    assert controls(second) == ["wait"]
    assert tags(second)[-1] == TAG


def test_a_kernel_between_two_others_lets_the_next_begin_once_it_has_waited() -> None:
    A, B, C, _ = chain(4, 256)
    D = te.compute(A.shape, lambda i, j: C[i, j] - B[i, j], name="D")
    sch = s_tir.Schedule(te.create_prim_func([A, D]))
    for name in ("B", "C", "D"):
        sch.auto_coalesce(name)
    kernels = device_program(sch).kernels.values()
    starts = ["launch_dependents"]
    assert [controls(kernel) for kernel in kernels] == [starts, ["wait", *starts], ["wait"]]
    gives(sch, VALUE, None, D=VALUE + 1)


def without(kernel: tirx.PrimFunc, action: str) -> tirx.PrimFunc:
    def keep(call: tirx.Evaluate) -> tirx.Evaluate:
        control = getattr(getattr(call.value, "op", None), "name", "") == CONTROL
        if control and str(call.value.args[0].value) == action:
            return tirx.Evaluate(0)
        return call

    rule = (tirx.Evaluate, keep)
    return kernel.with_body(tvm_ffi.structural_map(kernel.body, [rule], order="post"))


@pytest.mark.parametrize("action", ["wait", "launch_dependents"])
def test_a_missing_wait_is_a_race_and_a_missing_start_is_none(
    action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first kernel lets nobody begin early: its end makes nothing visible."""
    compiled = kernel_module.compile_kernel

    def broken(name: str, function: tirx.PrimFunc, *rest: Any) -> Any:
        return compiled(name, without(function, action), *rest)

    monkeypatch.setattr(run_module, "compile_kernel", broken)
    hazards = simulate(two_kernels(ours=True), VALUE, None).hazards
    if action == "launch_dependents":
        assert not hazards
        return
    assert [(h.kind, h.buffer) for h in hazards] == [("race", "B")]
    assert (
        "kernel main_kernel_1, launched while main_kernel runs, reads B before "
        "griddepcontrol.wait, and main_kernel writes it." in hazards[0].message
    )


def in_sequence(arch: str = "sm_90a") -> dict[str, tirx.PrimFunc]:
    """Kernels of a function that others are called around."""
    main = two_kernels(ours=True).mod["main"].with_attr(IN_SEQUENCE, True)
    return device_program(main, target={"kind": "cuda", "arch": arch}).kernels


def test_all_kernels_of_a_function_in_a_model_wait_and_let_the_next_begin() -> None:
    first, second = in_sequence().values()
    for kernel in (first, second):
        assert controls(kernel) == ["wait", "launch_dependents"]
        assert waits_first(kernel)
        assert tags(kernel).count(TAG) == 1
    assert not any("griddepcontrol" in str(kernel) for kernel in in_sequence("sm_80").values())


def test_a_first_kernel_that_waits_for_nobody_gives_the_same() -> None:
    main = two_kernels(ours=True).mod["main"].with_attr(IN_SEQUENCE, True)
    alone, among = (simulate(one, VALUE, None) for one in (two_kernels(ours=True), main))
    assert not among.hazards
    np.testing.assert_array_equal(among.outputs["C"], alone.outputs["C"])


def test_the_pipeline_of_models_says_so_of_every_function() -> None:
    mod = relax_module(relax.op.nn.softmax, (64, 64), dtype="float32")
    target = tlx.cuda_target("sm_90a")
    built = tvm.compile(mod, target, relax_pipeline=tlx.relax_pipeline(target))
    (source,) = (one.inspect_source() for one in built.mod.imports[0].imports)
    assert source.count("griddepcontrol_wait();") == 1


def row_by_weights(constants: list[int]) -> tirx.PrimFunc:
    """A row times a weight N x K, as a function of a model that calls it with such constants."""
    x, w = te.placeholder((1, 256), name="x"), te.placeholder((64, 256), name="w")
    k = te.reduce_axis((0, 256), name="k")
    y = te.compute((1, 64), lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), name="y")
    sch = s_tir.Schedule(te.create_prim_func([x, w, y]))
    sch.fuse_rows(["y"])
    return sch.mod["main"].with_attr({IN_SEQUENCE: True, CONSTANTS: constants})


def test_weights_are_loaded_before_the_wait_and_by_plain_loads() -> None:
    (kernel,) = device_program(row_by_weights([1])).kernels.values()
    loads = [text for text in ("w[T.Ramp", "x[T.Ramp") if text in str(kernel.body)]
    early, late = str(kernel.body).split('T.ptx.griddepcontrol("wait", "")')
    assert len(loads) == 2
    assert "= w[" in early
    assert "= w[" not in late
    assert "= x[" in late
    assert "= x[" not in early
    assert late.lstrip().startswith('T.ptx.griddepcontrol("launch_dependents"')
    # With `__restrict__` nvcc makes them loads of what never changes, which ptxas moves.
    assert "tirx.noalias" not in kernel.attrs
    draw = np.random.default_rng(1).integers
    x, w = (draw(-8, 8, shape).astype("float32") for shape in ((1, 256), (64, 256)))
    gives(row_by_weights([1]), x, w, None, y=x @ w.T)


@pytest.mark.parametrize("constants", [[], [0]])
def test_a_kernel_that_begins_with_other_loads_waits_first(constants: list[int]) -> None:
    (kernel,) = device_program(row_by_weights(constants)).kernels.values()
    assert waits_first(kernel)
    assert "tirx.noalias" in kernel.attrs


def test_a_constant_that_a_kernel_before_writes_is_a_race() -> None:
    A = te.placeholder((64, 256), name="A")
    B = te.compute(A.shape, lambda i, j: A[i, j] + 1.0, name="B")
    k = te.reduce_axis((0, 256), name="k")
    C = te.compute((64,), lambda i: te.sum(B[i, k], axis=k), name="C")
    sch = s_tir.Schedule(te.create_prim_func([A, B, C]))
    sch.auto_coalesce("B")
    sch.auto_coalesce("C")
    main = sch.mod["main"].with_attr({IN_SEQUENCE: True, CONSTANTS: [1]})
    value = np.ones((64, 256), "float32")
    messages = [one.message for one in simulate(main, value, None, None).hazards]
    assert any(
        "reads B before griddepcontrol.wait, and main_kernel writes it" in m for m in messages
    )


def test_dynamic_shared_memory_stays_the_last_launch_parameter() -> None:
    A, B, _ = elementwise(4, 256, lambda a: a + 1.0)
    C = te.compute(A.shape, lambda i, j: B[i, 255 - j], name="C")
    sch = s_tir.Schedule(te.create_prim_func([A, C]))
    sch.auto_coalesce("B")
    block = sch.get_sblock("C")
    i, j = sch.get_loops(block)
    sch.bind(i, "blockIdx.x")
    sch.bind(j, "threadIdx.x")
    staged = sch.cache_read(block, 0, "shared.dyn")
    sch.compute_at(staged, i)
    sch.bind(sch.get_loops(staged)[-1], "threadIdx.x")
    _, second = device_program(sch).kernels.values()
    assert tags(second)[-2:] == [TAG, "tirx.use_dyn_shared_memory"]
    gives(sch, VALUE, None, C=VALUE[:, ::-1] + 1)


@pytest.mark.parametrize(("ours", "arch"), [(False, "sm_90a"), (True, "sm_80")])
def test_stock_functions_and_older_gpus_are_left_alone(ours: bool, arch: str) -> None:
    kernels = device_program(two_kernels(ours=ours), target={"kind": "cuda", "arch": arch}).kernels
    assert not any(TAG in tags(kernel) for kernel in kernels.values())
    assert not any("griddepcontrol" in str(kernel) for kernel in kernels.values())


def test_the_launch_reaches_the_cuda_code_and_the_runtime() -> None:
    A, B = column_sum((32768, 4096), "float16")
    s = tlx.create_schedule(B.op)
    s[B].auto_coalesce()
    source = tlx.build(s, [A, B], target="cuda").mod.imports[0].inspect_source()
    assert source.count("tvm_builtin_ptx_griddepcontrol_wait();") == 1
    assert source.count("tvm_builtin_ptx_griddepcontrol_launch_dependents();") == 1


@pytest.mark.gpu
def test_slabs_add_up_on_a_gpu_run_after_run() -> None:
    A, B = column_sum((32768, 4096), "float16")
    s = tlx.create_schedule(B.op)
    s[B].auto_coalesce()
    run = tlx.build(s, [A, B], target="cuda")["main"]
    value = np.random.default_rng(0).integers(-8, 8, (32768, 4096)).astype("float16")
    a = tvm.runtime.tensor(value, tvm.cuda())
    for _ in range(8):
        b = tvm.runtime.tensor(np.full(4096, np.nan, "float32"), tvm.cuda())
        run(a, b)
        np.testing.assert_array_equal(b.numpy(), value.astype("float32").sum(0))
