from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.page.logs import DEFAULT, measured, modelled, transposes
from tests.tune.helpers import make_model, make_record
from tvm_layout_ext.errors import RecordError
from tvm_layout_ext.report.page import render_page, workloads, write_plots
from tvm_layout_ext.report.page.kernel import kernel_of
from tvm_layout_ext.report.page.search import importance, search_of
from tvm_layout_ext.report.trials import trial_table
from tvm_layout_ext.report.winner import counted_shape
from tvm_layout_ext.tune.space.operator import Workload
from tvm_layout_ext.tune.space.task import make_task

#: The key of what is red.
LEGEND = 'height="12" fill="#f2a29b"'


def counted(listing: str) -> int:
    """Sectors of global memory that the lines of a listing have."""
    found = re.findall(r"^ *\d+ +([\d,]+) \(", listing, re.MULTILINE)
    return sum(int(text.replace(",", "")) for text in found)


def test_the_table_keeps_numbers_as_numbers_and_leaves_empty_columns_out() -> None:
    records = transposes()
    table = trial_table(records, records[4])
    by_name = {column.name: column for column in table.columns}
    assert not {"server", "TFLOPS"} & set(by_name)
    median, times = by_name["median us"], (9.0, 120.0, None, 30.5, 8.0, 105.0)
    assert median.numeric
    assert median.keys == [pytest.approx(us) if us else None for us in times]
    assert [kind for kind, _ in table.rows] == ["default", "", "failed", "", "winner", ""]
    reason = by_name["failed with"].texts[2]
    assert reason == "WrongResultError: It is <b>wrong</b> at (0, 0)."
    assert median.texts[2] == ""
    mixed = [modelled(0, 1.0, swizzle="auto"), modelled(1, 2.0, swizzle=64)]
    kinds = {column.name: column.numeric for column in trial_table(mixed, None).columns}
    assert (kinds["swizzle"], kinds["stages"]) == (False, True)


def test_a_workload_tells_gain_space_conditions_and_failures() -> None:
    (view,) = workloads(transposes(), kernels=False)
    facts, conditions = dict(view.facts), dict(view.conditions)
    assert facts["median"] == "8.00 us"
    assert facts["against the default"] == "0.889 of it (9.00 us)"
    assert facts["trials"] == "6, 1 of them failed"
    assert conditions["L2 cache"] == "flushed"
    assert conditions["clock"] == "1980 to 1980 MHz"
    assert conditions["protocol"] == "warm_up=3"
    assert conditions["versions"] == "tvm 0.27.0, package 0.1.0 (6 trials)"
    assert view.failures == [["WrongResultError", "1", "It is <b>wrong</b> at (0, 0)."]]
    assert view.verdict.startswith("8.00 us, 2% of the memory roof, 1.12 times as fast as the")
    assert view.counters[0] == ["knob align_offset", "0", "4", ""]
    texts = [text for text, _ in view.overview()]
    assert texts == ["8.00 us", "0.06554 TB/s", "2%", "1.12", "6"]


def test_the_share_is_that_of_the_roof_that_binds() -> None:
    """462 TFLOPS of a large product were told as 8% of the memory roof."""
    work = Workload("gemm", (4096, 4096, 4096), "float16")
    config = make_task("gemm", (256, 256, 256), "float16").space.default()
    record = measured(0, 297.5, workload=work, config=config, tflops=462.0, gbps=338.0)
    (view,) = workloads([record], kernels=False)
    assert view.verdict == "297.50 us, 50% of the wgmma roof, the default."
    assert [text for text, _ in view.overview()][1:3] == ["462 TFLOPS", "50%"]


@pytest.mark.parametrize(("dtype", "told"), [("int8", "923 TOPS"), ("float16", "923 TFLOPS")])
def test_arithmetic_of_integers_is_no_floating_point(dtype: str, told: str) -> None:
    work = Workload("gemm_nt", (256, 256, 256), dtype)
    config = make_task(work.operator, work.shape, dtype).space.default()
    (view,) = workloads(
        [measured(0, 8.0, workload=work, config=config, tflops=923.0)], kernels=False
    )
    assert dict(view.facts)["arithmetic"] == told


def test_failures_are_counted_by_their_errors() -> None:
    register = "Function main_kernel needs 300 registers. 255 are there.\nptxas fatal"
    late = [
        measured(6, None, error_class="LayoutError", error_text="Rows of A are torn. Pad by 8."),
        measured(7, None, error_class="PtxasError", error_text=register),
        measured(8, None, error_class="LayoutError", error_text="Rows of B are torn."),
    ]
    (view,) = workloads([*transposes(), *late], kernels=False)
    assert view.failures == [
        ["LayoutError", "2", "Rows of A are torn."],
        ["WrongResultError", "1", "It is <b>wrong</b> at (0, 0)."],
        ["PtxasError", "1", "Function main_kernel needs 300 registers."],
    ]
    assert "Rows of A are torn." in render_page("log", [view])


def test_workloads_devices_and_runners_are_kept_apart() -> None:
    other = make_record(workload=Workload("transpose", (128, 128), "float32"))
    there = measured(0, 7.0, device="NVIDIA H100")
    views = workloads([*transposes(), there, make_record(), other], kernels=False)
    assert [(view.title, view.measured) for view in views] == [
        ("transpose 256x256 float32", True),
        ("transpose 256x256 float32", True),
        ("transpose 64x64 float32", False),
        ("transpose 128x128 float32", False),
    ]
    assert len({view.slug for view in views}) == 4
    # The page offers them to ``export``, which refuses other names.
    assert all(re.fullmatch(r"[a-z]\w+", view.slug) for view in views)
    assert views[0].roof is not None
    assert views[1].roof is None


def test_an_operator_of_ones_own_is_shown_without_its_kernel() -> None:
    mine = make_record(workload=Workload("mine", (8,), "float32"))
    (view,) = workloads([mine])
    assert view.after is not None
    assert "cannot be explained: Unknown operator 'mine'" in view.after.problem
    assert "cannot be explained" in render_page("log", [view])


def test_whatever_a_kernel_raises_is_a_sentence_on_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_record: object, _operator: object, blocks: int) -> None:
        raise RuntimeError("Traceback\nCheck failed: <x> is not bound")

    monkeypatch.setattr("tvm_layout_ext.report.page.kernel.explain_record", broken)
    (view,) = workloads([make_record(config=DEFAULT)])
    assert view.after is not None
    assert view.after.problem == (
        "Its kernel cannot be built: RuntimeError: Check failed: <x> is not bound"
    )
    assert "Check failed: &lt;x&gt; is not bound" in render_page("log", [view])


def test_a_log_of_failures_has_no_winner() -> None:
    (view,) = workloads([measured(0, None)])
    assert view.winner is None
    assert view.facts[0] == ("winner", "no candidate worked")
    page = render_page("log", [view])
    assert "&lt;b&gt;wrong&lt;/b&gt;" in page
    assert "<b>wrong" not in page


def test_the_winners_kernel_has_sources_banks_and_accesses() -> None:
    record = make_record(config=DEFAULT, conflict_model=make_model(1.0))
    kernel = kernel_of(record)
    assert kernel.problem == ""
    (_, accesses), (_, shared) = kernel.tables
    assert any(row[0] == "A_shared" for row in accesses)
    assert shared[0][:3] == ["A_shared", "64x64", "65"]
    assert counted(kernel.cuda) == counted(kernel.script) > 0
    assert kernel.banks.startswith("<svg")
    assert "#f2a29b" not in kernel.banks.replace(LEGEND, ""), "without conflicts nothing is red"
    assert kernel.pipeline == ""


def test_a_kernel_tells_its_pipeline_and_what_was_chosen() -> None:
    workload = Workload("gemm", (128, 128, 128), "float16")
    default = make_task("gemm", (128, 128, 128), "float16").space.default()
    record = make_record(workload=workload, config=default | {"wgmma": "none"})
    kernel = kernel_of(record)
    assert kernel.problem == ""
    assert "groups under way" in kernel.pipeline
    assert any("SwizzleSharedMemory chose" in decision for decision in kernel.decisions)
    kernel = kernel_of(make_record(workload=workload, config=default))
    assert kernel.problem == ""
    assert any("stages by TMA" in decision for decision in kernel.decisions)


def test_sums_of_a_product_are_cut_and_those_of_rows_are_not() -> None:
    """A block of a product of 16384 terms took 7 s; its steps are all alike."""
    shapes = {
        ("gemm", (4096, 4096, 16384)): (2048, 2048, 512),
        ("gemm_nt", (100, 2048, 1000)): (100, 2048, 1000),
        ("row_sum", (32768, 16384)): (2048, 16384),
    }
    for (name, shape), cut in shapes.items():
        task = make_task(name, shape, "float16")
        record = make_record(workload=task.workload, config=task.space.default())
        assert counted_shape(task, record) == cut


def test_a_kernel_is_kept_and_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_record(config=DEFAULT)
    first = kernel_of(record)
    monkeypatch.setattr("tvm_layout_ext.report.page.kernel.explain_record", None)
    assert kernel_of(record) == first
    other = kernel_of(make_record(config=DEFAULT | {"align_offset": 0}))
    assert "cannot be built" in other.problem


def test_knobs_have_a_place_for_each_value_and_a_share() -> None:
    """Knob a decides all, b nothing; what failed has a place and no say."""
    records = [
        modelled(n, 10.0 if a == "x" else 20.0, a=a, b=b)
        for n, (a, b) in enumerate([("x", 16), ("y", 16), ("x", 8), ("y", 8)] * 2)
    ]
    records = [replace(one, config={k: one.config[k] for k in "ab"}) for one in records]
    failed = replace(
        records[0], trial=8, status="error", conflict_model=None, config={"a": "z", "b": 8}
    )
    found = search_of([*records, failed])
    assert found is not None
    assert [(axis.name, axis.values) for axis in found.axes] == [
        ("a", ["x", "y", "z"]),
        ("b", ["8", "16"]),
    ]
    assert found.trials[0].at == [0, 1]
    assert found.trials[-1].at == [2, 0]
    assert found.trials[-1].score is None
    assert found.importance == [("a", pytest.approx(1.0)), ("b", 0.0)]
    assert search_of([records[0], records[0]]) is None


def test_a_knob_of_a_value_a_trial_explains_nothing() -> None:
    assert importance([(n, 1.0 + n) for n in range(9)]) is None
    assert importance([(0, 1.0), (0, 2.0)]) is None
    assert importance([(n % 2, 5.0) for n in range(9)]) is None


def test_the_page_needs_nothing_but_itself() -> None:
    page = render_page("<my> log", workloads([*transposes(), modelled(0, 5.0)], kernels=False))
    assert "<title>Tuning report: &lt;my&gt; log</title>" in page
    addresses = re.findall(r"""(?:https?:)?//[^\s"'<>]+""", page)
    assert {a for a in addresses if a.startswith(("http", "//"))} <= {"http://www.w3.org/2000/svg"}
    assert "@import" not in page
    for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(drawing)
    assert "modelled: scores are a model" in page


def test_plots_are_written_as_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shown = workloads([*transposes(), modelled(0, 5.0)], kernels=False)
    written = write_plots(tmp_path / "png", shown)
    assert [path.name for path in written] == [
        "transpose_256x256_1_convergence.png",
        "transpose_256x256_1_roofline.png",
        "gemm_128x128x128_2_convergence.png",
        "gemm_128x128x128_2_roofline.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    with pytest.raises(RecordError, match="Cannot write plots in /dev/null/png"):
        write_plots(Path("/dev/null/png"), shown)
