"""Wrong input of the Python interface and of files is one sentence of ours, never one of TVM's."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.report.page.logs import transposes
from tvm_layout_ext import te
from tvm_layout_ext.errors import LayoutExtError
from tvm_layout_ext.tune.records.log import Log

EXAMPLES = Path(__file__).parents[1] / "docs" / "_examples.py"
#: Expressions; ``copied()`` and ``product()`` are schedules, ``a`` is an array of 128 x 128 floats.
CALLS = [
    "tlx.op('nope')",
    'tlx.op(3)',
    "tlx.op('transpose')(np.array(['a']))",
    "tlx.op('transpose')(np.ones((2,2,2),'float32'))",
    "tlx.op('transpose')(np.ones((64,64),'complex64'))",
    "tlx.op('transpose')(np.ones((0,64),'float32'))",
    "tlx.op('gemm')(np.ones((64,32),'float16'),np.ones((64,32),'float16'))",
    "tlx.build(copied(), target='llvmx')",
    'tlx.lower(copied(), [1])',
    'tlx.simulate(copied())',
    "tlx.simulate(copied(), np.ones((3,3),'float32'), None)",
    "tlx.simulate(copied(), a.astype('float64'), None)",
    'tlx.simulate(copied(), a, None, None)',
    "tlx.simulate(copied(), 'a', None)",
    "tlx.tune('transpose', log='l', runner='simulate')",
    "tlx.tune('transpose', shape='ab', log='l', runner='simulate')",
    "tlx.tune('transpose', shape=(4,None), log='l', runner='simulate')",
    "tlx.tune('transpose', shape=5, log='l', runner='simulate')",
    "tlx.tune('transpose', shape=(4,4), trials='x', log='l', runner='simulate')",
    "tlx.tune('transpose', shape=(4,4), trials=1.5, log='l', runner='simulate')",
    "tlx.tune('transpose', shape=(4,4), trials=1, seed='x', log='l', runner='simulate')",
    "tlx.tune('transpose', shape=(4,4), trials=1, log='/dev/null/x', runner='simulate')",
    "tlx.tune('transpose', shape=(4,4), trials=1, log='l', runner=3)",
    "tlx.apply_best(copied().mod, '/nowhere')",
    "tlx.export(copied(), 'x', operator='transpose')",
    "tlx.tune_module(copied().mod, trials=None, log='l')",
    "tlx.knob('x', (1,2), default=3)",
    "tlx.cuda_source(copied(), target='llvm')",
    "copied().swizzle('A_shared', mode=(3,1,1))",
    "copied().swizzle('A_shared', 7)",
    "copied().auto_coalesce('B', num_threads=33)",
    "product().auto_coalesce('C', vector_bytes=3)",
    "product().fuse_attention('C')",
    "product().use_tensor_core('C', 'nope')",
    "product().use_tensor_core('C', multiples=(1,))",
    "product().use_tensor_core('C', multiples='abc')",
    "product().gemm('C', tile=(1,2), warps=(1,1), stages=2)",
    "product().gemm('C', tile=(64,64,32), warps=(3,3), stages=2)",
    "product().gemm('C', tile=(64,64,32), warps=(2,2), stages=0)",
    'product().rasterize(1,2)',
    "product().store_matrix('C')",
    "product().distribute_epilogue('C')",
    "tlx.knob('x', (1,2), before=np.ones(2))",
    "tlx.knob('x', (1,2), default=np.ones(2))",
    "tlx.NarrowShortcuts()('x')",
    "tlx.explain(symbolic(), values={'n': {}})",
    "tlx.explain(symbolic(), values={'n': 2**70})",
    "import_module('tvm_layout_ext.intrin').instruction({})",
    "import_module('tvm_layout_ext.tune').find_operator(0)",
    "import_module('tvm_layout_ext.tune').find_operator([])",
    "import_module('tvm_layout_ext.tune').Database(0)",
    "import_module('tvm_layout_ext.analysis.device_limits').shared_buffers(symbolic(), None)",
    "te.compute((4, 4), lambda *_: None)",
    "te.compute((4, 4), lambda *_: [None])",
    "te.compute((4,), lambda i: A[None, i] + 1.0)",
    "te.compute(A, lambda i: 1.0)",
    "te.compute((4.5,), lambda i: 1.0)",
    "te.placeholder((float('nan'),))",
    "te.placeholder((-1, 4))",
    "te.placeholder((4,), '')",
    "te.placeholder((4,), np.ones(2))",
    "te.sum(A[0, 0], axis=[None])",
    "te.comm_reducer(3, 4)(A[0, 0], te.reduce_axis((0, 4)))",
    "te.comm_reducer(lambda p, q: p, lambda t: None)(A[0, 0], te.reduce_axis((0, 4)))",
    "te.extern((4,), [A], lambda ins, outs: None)",
    "te.create_prim_func([A, lambda: 1])",
    "te.Schedule(None)",
    "te.decl_tensor_intrin(te.compute((4,), lambda i: A[i, 0]).op, None, binds=3)",
    "tlx.kernel(int)",
    "tlx.kernel(te.var('n'))",
    "tlx.kernel(lambda A, *, k: copied())(a, k=[])",
    "tlx.autotune(knobs=[tlx.knob('k', (1, 2))], key=te.var('n'))",
    "tlx.autotune(knobs=[tlx.knob('k', (1, 2))], key=lambda A: [1])(lambda A, *, k: 0)(a)",
    "tlx.tune('transpose', shape=(8, 8), trials=1, progress=te.var('n'))",
    "tlx.tune(copied().mod, schedule=print, knobs=np.ones(2), trials=1)",
    "tlx.op('softmax', log='\\0')",
    "tlx.ApplyBest('a' * 5000)",
    "tlx.export(tvm.IRModule({}), 'x')",
    "tlx.simulate(copied(), [[1], [2, 3]], None)",
    "tlx.relax_pipeline()(None)",
    "tlx.relax_pipeline(None, len)",
    "product().use_tensor_core('C', swap=np.ones(2))",
    "product().use_tensor_core('C', multiples=(2**63, 64, 32))",
    "product().gemm('C', tile=(2**31, 64, 32))",
    "product().gemm('C', tile=(64, 64, 32), swizzle=np.ones(2))",
    "tlx.hardware.blocks_per_sm(None, 1, 1, 1)",
    "tlx.intrin.store_name('float16', None)",
    "import_module('tvm_layout_ext.tune').register_operator([], print)",
    "import_module('tvm_layout_ext.report').render(None, [32])",
    "L.BlockedLayout(np.ones((2, 2)), [32], [1], [0])",
    "L.BlockedLayout('a' * 5000, [32], [1], [0])",
    "L.LinearLayout([('register', [(float('inf'),)])], [('dim0', 4)])",
    "L.LinearLayout.from_bases({'register': A}, ['dim0'])",
    "L.LinearLayout.from_bases({'register': ['x', [2]]}, ['dim0'])",
    "L.bank_conflicts(linear, linear, 16)",
    "L.swizzle_conflicts(L.optimal_swizzle(linear, linear, 16), linear, linear, None)",
    "L.wavefronts([[1], [2, 3]], 4)",
    "linear.apply(register=None, lane=0, warp=0, block=0)",
    "linear.apply_arrays(register=[0, 1], lane=[0, 1, 2], warp=0, block=0)",
    "linear.flatten_outs([])",
    "tlx.hardware.launch_problem({'threadIdx.x': None})",
    'L.BlockedLayout([3],[32],[1],[0])',
    "L.SwizzledSharedLayout('a',1,1,[0])",
    'L.SwizzledSharedLayout(1,1,1,[1,0]).to_linear([3,5])',
    "L.BlockedLayout([1],[32],[1],[0]).render([32], kind='bmp')",
]  # fmt: skip


@cache
def names() -> dict[str, Any]:
    made: dict[str, Any] = {}
    exec(EXAMPLES.read_text().split("# %% tlx.build")[0], made)
    made |= {"import_module": import_module, "symbolic": symbolic, "tvm": tvm}
    made["A"] = te.placeholder((8, 8), name="A")
    made["linear"] = tlx.layout.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]).to_linear([64, 64])
    return made | {"L": tlx.layout, "a": np.ones((128, 128), "float32")}


def symbolic() -> Any:
    """A copy of ``n`` floats, mapped."""
    n = tvm.tirx.Var("n", "int64")
    A = te.placeholder((n,), "float32", name="A")
    sch = s_tir.Schedule(te.create_prim_func([A, te.compute((n,), lambda i: A[i], name="B")]))
    sch.auto_coalesce("B")
    return sch.mod["main"]


def is_sentence(text: str) -> bool:
    return "\n" not in text.strip() and len(text) <= 500 and text.rstrip().endswith(".")


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_call_is_one_sentence(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LayoutExtError) as raised:
        eval(call, names())
    assert is_sentence(str(raised.value)), str(raised.value)


@cache
def lines() -> list[str]:
    return [json.dumps(record.to_json()) for record in transposes()]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@given(field=st.sampled_from(sorted(transposes()[0].to_json())), value=ANYTHING)
def test_a_record_with_any_field_replaced_is_read_or_counted(
    tmp_path_factory: pytest.TempPathFactory, field: str, value: Any
) -> None:
    file = tmp_path_factory.getbasetemp() / "replaced.jsonl"
    data = json.loads(lines()[0]) | {field: value}
    file.write_text(f"{lines()[1]}\n{json.dumps(data)}\n")
    reading = Log(file).read()
    is_same = len(reading.records) == 1 and field == "id" and value == transposes()[1].id
    assert len(reading.records) + reading.corrupt + reading.foreign == 2 - is_same


@pytest.mark.parametrize(
    ("field", "value"),
    [("median", "x"), ("median", []), ("tflops", float("nan")), ("gbps", "0"), ("registers", 1.5),
     ("spread", {}), ("verified_on", 3), ("median", float("inf"))],
)  # fmt: skip
def test_figures_of_a_record_are_finite_numbers(field: str, value: Any, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(json.dumps(json.loads(lines()[0]) | {field: value}))
    reading = Log(file).read()
    assert (len(reading.records), reading.corrupt) == (0, 1)


@given(at=st.integers(0, 4000), junk=st.binary(max_size=12))
def test_a_log_with_any_bytes_replaced_is_read_or_counted(
    tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "broken.jsonl"
    text = "\n".join(lines()).encode()
    file.write_bytes(text[:at] + junk + text[at + len(junk) :])
    reading = Log(file).read()
    assert len(reading.records) >= len(lines()) - 2
    assert reading.warning is None or re.fullmatch(r"Skipped .*\.", reading.warning)
