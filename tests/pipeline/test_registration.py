from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import tvm
from tvm import s_tir, tirx
from tvm.tirx import compilation_pipeline

import tvm_layout_ext as tlx
from tests.pipeline.corpus import CORPUS, TARGET
from tests.programs.emitted import cuda_text
from tvm_layout_ext import pipeline, transform


@pytest.fixture
def uninstalled() -> Iterator[None]:
    tlx.uninstall()
    yield
    tlx.install()


@pytest.mark.parametrize("name", transform.__all__)
def test_each_pass_is_a_global_function_and_a_transform(name: str) -> None:
    made = tvm.get_global_func(f"tvm_layout_ext.transform.{name}")()
    assert made.info.name == f"tvm_layout_ext.{getattr(transform, name).__name__}"
    assert getattr(tvm.transform, name)().info.name == made.info.name
    assert getattr(s_tir.transform, name)().info.name == made.info.name


def test_the_named_pipeline_is_registered() -> None:
    assert tirx.get_tir_pipeline("layout_ext") is not None


def test_uninstall_restores_stock_tvm(uninstalled: None) -> None:
    assert compilation_pipeline.PIPELINE_MAP["s_tir"] is pipeline.stock_pipeline
    assert "layout_ext" not in compilation_pipeline.PIPELINE_MAP
    for name in transform.__all__:
        assert tvm.get_global_func(f"tvm_layout_ext.transform.{name}", allow_missing=True) is None
        assert not hasattr(tvm.transform, name)
        assert not hasattr(s_tir.transform, name)


def test_uninstall_leaves_no_attribute_on_the_schedule_class() -> None:
    probe = (
        "import tvm; from tvm import s_tir; before = set(vars(s_tir.Schedule));"
        "import tvm_layout_ext as tlx; added = set(vars(s_tir.Schedule)) - before;"
        "assert 'double_buffer' in added, added; tlx.uninstall();"
        "assert set(vars(s_tir.Schedule)) == before"
    )
    subprocess.run([sys.executable, "-c", probe], check=True)


def test_install_twice_changes_nothing() -> None:
    tlx.install()
    assert compilation_pipeline.PIPELINE_MAP["s_tir"] is pipeline.layout_ext_pipeline


def test_every_stock_pass_runs_in_its_order() -> None:
    stock = [p.info.name for p in pipeline.stock_passes(pipeline.stock_pipeline)]
    first, second = pipeline.lowering_passes()
    ours = [p.info.name for p in first + second]
    assert [name for name in ours if not name.startswith("tvm_layout_ext.")] == stock
    assert sum(name.startswith("tvm_layout_ext.") for name in ours) == len(
        {getattr(transform, name) for name in transform.__all__}
    )


def test_pass_context_options_still_reach_tvm() -> None:
    with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
        names = [p.info.name for half in pipeline.lowering_passes() for p in half]
    assert "tirx.CommonSubexprElim" not in names


@pytest.mark.parametrize("option", ["tirx.disable_cse_tir", "tirx.use_async_copy"])
def test_stock_code_under_options(option: str) -> None:
    mod = CORPUS["tiled_float32_pad_static"]()
    with tvm.transform.PassContext(config={option: True}):
        ours = cuda_text(mod)
        tlx.uninstall()
        try:
            assert cuda_text(mod) == ours
        finally:
            tlx.install()


def test_going_on_from_lower_gives_the_same_code() -> None:
    mod = CORPUS["tiled_float32_pad_static"]()
    lowered = tlx.lower(mod, target=TARGET)
    assert cuda_text(lowered) == cuda_text(mod)
