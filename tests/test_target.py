from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np
import pytest
import tvm
from tvm.target import Target

import tvm_layout_ext as tlx
from tests.programs.mapped import computed
from tvm_layout_ext import target
from tvm_layout_ext.gpu import hardware


@pytest.mark.parametrize(
    ("arch", "limit"),
    [
        ("sm_75", 65536),
        ("sm_80", 166912),
        ("sm_86", 101376),
        ("sm_89", 101376),
        ("sm_90", 232448),
        ("sm_90a", 232448),
        ("sm_100a", 232448),
    ],
)
def test_shared_memory_limits_are_the_opt_in_ones(arch: str, limit: int) -> None:
    assert tlx.cuda_target(arch).attrs["max_shared_memory_per_block"] == limit
    assert hardware.architecture(arch).shared_per_block == limit


def test_an_unknown_architecture_lists_the_known() -> None:
    with pytest.raises(tlx.TargetError, match=r"'sm_42'; known are sm_70, .*sm_90"):
        tlx.cuda_target("sm_42")


def test_the_variable_names_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_LAYOUT_EXT_ARCH", "sm_80")
    assert tlx.default_target().attrs["arch"] == "sm_80"


def _copy(annotated: bool) -> tvm.IRModule:
    sch = computed((32,), lambda a, i: a[i])
    block = sch.get_sblock("B")
    sch.bind(sch.get_loops(block)[0], "threadIdx.x")
    if annotated:
        sch.annotate(block, "layout_ext.test", 1)
    return sch.mod


def _arch_of(mod: tvm.IRModule, asked: str | Target) -> str:
    seen: list[str] = []

    @tvm.instrument.pass_instrument
    class Look:
        def run_after_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
            if info.name == "tirx.CommonSubexprElim":
                seen.append(str(mod["main"].attrs["target"].attrs["arch"]))

    with tvm.transform.PassContext(instruments=[Look()]):
        tvm.compile(mod, target=asked)
    return seen[0]


def test_the_bare_word_cuda_means_the_default_target_for_annotated_functions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TVM_LAYOUT_EXT_ARCH", "sm_80")
    target._say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "tvm_layout_ext"):
        assert _arch_of(_copy(annotated=True), "cuda") == "sm_80"
        assert _arch_of(_copy(annotated=True), "cuda") == "sm_80"
    if not tvm.cuda(0).exist:
        assert [r.levelname for r in caplog.records] == ["WARNING"]
        assert "means sm_80" in caplog.text


def test_the_bare_word_cuda_stays_tvms_for_other_functions() -> None:
    assert _arch_of(_copy(annotated=False), "cuda") == Target("cuda").attrs["arch"]


def test_an_explicit_target_is_kept() -> None:
    explicit = Target({"kind": "cuda", "arch": "sm_86"})
    assert _arch_of(_copy(annotated=True), explicit) == "sm_86"


def test_resolve_keeps_other_kinds() -> None:
    assert target.resolve("llvm").kind.name == "llvm"
    assert np.int64(target.resolve(None).attrs["max_threads_per_block"]) == 1024


def test_lowering_for_our_target_says_nothing_of_cuda_versions() -> None:
    code = """
import numpy as np
import tvm_layout_ext as tlx
tlx.op("transpose")(np.zeros((8, 8), "float32"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Unable to detect" not in done.stderr
