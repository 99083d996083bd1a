"""Tuning a whole module: its tasks, the log, and compiling with it by our pass and by TVM's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.frontend import nn
from tvm.s_tir import meta_schedule as ms

from tests.programs.mapped import computed
from tests.programs.relaxed import relax_module
from tests.schedules.test_generic import gather, linear
from tests.tune.apply.test_apply import turned_softmax, unscheduled
from tvm_layout_ext import (
    ApplyBest,
    ScheduleError,
    apply_best,
    cuda_target,
    decisions,
    lower,
    te,
    tune_module,
)
from tvm_layout_ext.tune import Database, Log, Result, tune
from tvm_layout_ext.tune.apply.apply import fused
from tvm_layout_ext.tune.apply.module import module_tasks

TARGET = cuda_target("sm_90a")


def scheduled_names(mod: tvm.IRModule) -> dict[str, bool]:
    """Which functions of a module carry a schedule."""
    return {
        gv.name_hint: bool(func.attrs.get("tirx.is_scheduled", 0))
        for gv, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc)
    }


def test_module_is_tuned_and_compiled_by_our_pass_and_by_tvms(tmp_path: Path) -> None:
    mod = turned_softmax(64)
    result = tune_module(mod, TARGET, trials=2, log=tmp_path, runner="simulate")
    tasks = {name: one.task for name, one in sorted(result.results.items())}
    assert sorted(tasks) == ["softmax", "transpose"]
    assert (tasks["softmax"].shape, tasks["transpose"].shape) == ((), (64, 64))
    assert all(one.best is not None for one in result.results.values())
    applied = apply_best(mod, result.log, TARGET)
    assert scheduled_names(applied) == {"softmax": True, "transpose": True}
    assert isinstance(tvm.compile(applied, target=TARGET), tvm.runtime.Executable)

    database = Database(tmp_path).tvm()
    with TARGET, database:
        theirs = relax.transform.MetaScheduleApplyDatabase()(fused(mod, TARGET))
    assert scheduled_names(theirs) == {"softmax": True, "transpose": True}
    for task in module_tasks(mod, TARGET)[0]:
        found = ms.tir_integration.compile_tir(database, task.module, TARGET)
        assert found is not None
        assert "threadIdx.x" in str(lower(found.mod, target=TARGET))

    again = tune_module(mod, TARGET, trials=2, log=tmp_path, runner="simulate")
    assert [one.resumed for one in again.results.values()] == [2, 2]
    assert len(Database(tmp_path).read().records) == len(database)
    assert Log(tmp_path).read().warning is None


def test_functions_without_relax_are_tasks_too_and_tuned_by_one_crew(tmp_path: Path) -> None:
    pools: list[Any] = []

    def noting(*what: Any, **options: Any) -> Result:
        pools.append(options["runner"])
        return tune(*what, **options)

    mod = tvm.IRModule({"turn": unscheduled(64)["main"], "pick": gather(7, 64, 40)})
    result = tune_module(mod, trials=1, log=tmp_path, runner="simulate", search=noting)
    assert [pool.runner for pool in pools] == ["simulate"] * 2
    assert pools[0] is pools[1]
    assert sorted(result.results) == ["pick", "turn"]
    applied = apply_best(mod, tmp_path)
    assert scheduled_names(applied) == {"turn": True, "pick": True}
    assert applied["turn"].attrs["global_symbol"] == "main"


def test_what_cannot_be_tuned_is_skipped_with_its_reason(tmp_path: Path) -> None:
    n = te.var("n")
    symbolic = computed((n,), lambda a, i: a[i] + 1).mod["main"]
    mod = tvm.IRModule({"symbolic": symbolic, "turn": unscheduled(64)["main"]})
    tasks, skipped = module_tasks(mod, TARGET)
    assert [task.name for task in tasks] == ["turn"]
    assert "no buffer whose shape is all numbers" in skipped["symbolic"]
    found = tune_module(symbolic, log=tmp_path)
    assert not found.results
    (reason,) = found.skipped.values()
    assert "relax.transform.BindSymbolicVars" in reason
    with pytest.raises(ScheduleError, match="A PrimFunc or an IRModule is wanted, not a str"):
        tune_module("mod", log=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="It holds none"):
        tune_module(tvm.IRModule({}), log=tmp_path)


def test_records_of_a_function_are_found_by_its_digest_from_lines_alone(tmp_path: Path) -> None:
    func = linear(64, 64, 64)
    tune_module(func, trials=1, log=tmp_path / "log", runner="simulate")
    lines = tmp_path / "lines"
    lines.mkdir()
    (tmp_path / "log" / "trials.jsonl").rename(lines / "trials.jsonl")
    applied = apply_best(func.with_attr("op_pattern", 4), lines)
    assert applied["main"].attrs["tirx.is_scheduled"]
    from_database = apply_best(func, tmp_path / "log")
    assert tvm_ffi.structural_equal(applied["main"].params, from_database["main"].params, True)


def relax_linear(dtype: str, sums: str) -> tvm.IRModule:
    """``x @ w.T``, added up in another type and cast back, as a half-precision Linear is."""
    m, n, k = 96, 64, 128

    def build(x: Any, w: Any) -> Any:
        out = relax.op.matmul(x, relax.op.permute_dims(w), out_dtype=sums)
        return relax.op.astype(out, dtype) if sums == "float32" else out

    return relax_module(build, x=(m, k), w=(n, k), dtype=dtype)


@pytest.mark.parametrize(
    ("dtype", "sums", "name"),
    [("float16", "float32", "fused_NT_matmul_cast"), ("int8", "int32", "NT_matmul")],
)
def test_a_linear_is_the_product_by_transposed_weights(
    dtype: str, sums: str, name: str, tmp_path: Path
) -> None:
    mod = relax_linear(dtype, sums)
    (task,), skipped = module_tasks(mod, TARGET)
    assert (task.name, task.operator.name, task.shape) == (name, "gemm_nt", (96, 64, 128))
    assert not skipped
    tune_module(mod, TARGET, trials=1, log=tmp_path, runner="simulate")
    applied = apply_best(mod, tmp_path, TARGET)
    assert scheduled_names(applied) == {name: True}
    assert isinstance(tvm.compile(applied, target=TARGET), tvm.runtime.Executable)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of one trial of a linear of halves."""
    log = tmp_path_factory.mktemp("log")
    tune_module(relax_linear("float16", "float32"), TARGET, trials=1, log=log, runner="simulate")
    return log


@pytest.mark.parametrize("whole", [True, False], ids=["tvm.compile", "a pipeline of one's own"])
def test_context_left_a_product_by_transposed_weights_two_functions(
    whole: bool, tuned: Path
) -> None:
    mod = relax_linear("float16", "float32")
    want = tvm.compile(apply_best(mod, tuned, TARGET), target=TARGET)
    stock = relax.backend.cuda.legalize_passes
    with ApplyBest(tuned, nearest=False) as best:
        if whole:
            got = tvm.compile(mod, target=TARGET)
        else:
            lower = relax.backend.cuda.pipeline
            stages = (relax.pipeline.legalize_passes, lower.dataflow_lower_passes,
                      lower.finalize_passes)  # fmt: skip
            own = tvm.transform.Sequential([one for stage in stages for one in stage(TARGET)])
            got = tvm.compile(mod, target=TARGET, relax_pipeline=own)
    assert [(one.name, one.how) for one in best.applied] == [("fused_NT_matmul_cast", "recorded")]
    assert device_source(got) == device_source(want)
    assert "mma" in device_source(got)
    assert relax.backend.cuda.legalize_passes is relax.backend.cuda.pipeline.legalize_passes
    assert relax.backend.cuda.legalize_passes is stock


def test_context_leaves_the_transposes_of_other_threads_alone(tuned: Path) -> None:
    mod = relax_linear("float16", "float32")
    want = device_source(tvm.compile(mod, target=TARGET))
    with ApplyBest(tuned), ThreadPoolExecutor(1) as other:
        got = other.submit(tvm.compile, mod, target=TARGET).result()
    assert device_source(got) == want


def device_source(executable: tvm.runtime.Executable) -> str:
    """CUDA code of all kernels of a compiled Relax module."""
    (library,) = executable.mod.imports
    (device,) = library.imports
    return str(device.inspect_source())


def product_by_its_own_transpose() -> tvm.IRModule:
    """``x @ x.T``, on which TVM's pass fails."""

    def build(x: Any) -> Any:
        return relax.op.matmul(x, relax.op.permute_dims(x), out_dtype="float32")

    return relax_module(build, (64, 64))


def test_transposes_that_tvm_cannot_fuse_stay(tmp_path: Path) -> None:
    mod = product_by_its_own_transpose()
    with decisions.collect() as made:
        tune_module(mod, TARGET, trials=1, log=tmp_path, runner="simulate")
    assert any("Transposes stay functions of their own" in one.text for one in made)
    with ApplyBest(tmp_path) as best:
        tvm.compile(mod, target=TARGET)
    found = {one.name: one.how for one in best.applied}
    assert found == {"matmul": "recorded", "transpose": "recorded"}


def nn_linear(dtype: str) -> tvm.IRModule:
    class Model(nn.Module):
        def __init__(self) -> None:
            self.linear = nn.Linear(64, 96, bias=True, dtype=dtype)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return nn.op.relu(self.linear(x))

    spec = {"forward": {"x": nn.spec.Tensor([1, 48, 64], dtype)}}
    mod, _ = Model().export_tvm(spec)
    return mod


def test_a_linear_of_a_batch_and_a_sequence_goes_to_tensor_cores(tmp_path: Path) -> None:
    result = tune_module(nn_linear("float16"), TARGET, trials=1, log=tmp_path, runner="simulate")
    ((name, found),) = result.results.items()
    assert found.best is not None
    assert found.best.config["tile_k"] == 32
    assert not result.off_tensor_cores
    applied = apply_best(nn_linear("float16"), tmp_path, TARGET)
    assert "ptx_legacy.mma" in str(lower(tvm.IRModule({"main": applied[name]}), target=TARGET))


def test_a_product_off_tensor_cores_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with decisions.collect() as made:
        result = tune_module(
            nn_linear("float32"), TARGET, trials=1, log=tmp_path, runner="simulate"
        )
    (reason,) = result.off_tensor_cores.values()
    assert "multiply float32 only as tf32" in reason
    assert "is not put on tensor cores: Tensor cores multiply float32" in caplog.text
    assert any(one.maker == "tune_module" and reason in one.text for one in made)


def test_a_gpu_without_the_instruction_is_a_reason_too() -> None:
    tasks, _ = module_tasks(linear(64, 64, 64), cuda_target("sm_75"))
    assert "sm_75 is older" in tasks[0].off_tensor_cores["product"]
