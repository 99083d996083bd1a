from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from tests.report.page.logs import measured, modelled, transposes
from tvm_layout_ext.gpu.hardware import MULTIPROCESSORS, SECTOR_BYTES
from tvm_layout_ext.gpu.measured import H200
from tvm_layout_ext.report.page.convergence import convergence_chart
from tvm_layout_ext.report.page.roofline import roofline, roofline_chart, roofs_of
from tvm_layout_ext.text import number
from tvm_layout_ext.tune.records.log import Record
from tvm_layout_ext.tune.space.operator import Workload

pytest.importorskip("matplotlib")


SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("records", "line", "marks"),
    [
        (transposes(), [[0, 9.0], [4, 8.0], [5.5, 8.0]], (5, 1)),
        ([measured(0, None), measured(1, 5.0)], [[1, 5.0], [1.5, 5.0]], (1, 1)),
        ([measured(0, None)], [], (0, 1)),
    ],
    ids=["steps", "first failed", "all failed"],
)
def test_the_line_steps_down_where_a_trial_was_best(
    records: list[Record], line: list[list[float]], marks: tuple[int, int]
) -> None:
    """Each trial is a mark, and the line goes on to the end."""
    chart = convergence_chart(records)
    lines = [one for one in chart.axes.lines if one.get_label() == "best so far"]
    assert all(one.get_drawstyle() == "steps-post" for one in lines)
    assert [place for one in lines for place in one.get_xydata().tolist()] == line
    drawn = chart.svg()
    assert (drawn.count('class="trial"'), drawn.count('class="failed"')) == marks
    # Scores that spread far are drawn on a logarithmic scale.
    assert chart.axes.get_yscale() == ("log" if len(line) > 2 else "linear")


def test_marks_tell_their_own_details() -> None:
    """The best trials are drawn apart from the others, each at its number."""
    drawn = ET.fromstring(convergence_chart(transposes()).svg())
    marks = [mark for mark in drawn.iter(f"{SVG}g") if mark.get("class") == "trial"]
    told = {mark.findtext(f"{SVG}title", "").split(":")[0]: mark for mark in marks}
    places = {name: float(mark.find(f"{SVG}use").get("x")) for name, mark in told.items()}  # type: ignore
    assert sorted(places, key=places.__getitem__) == [f"trial {n}" for n in (0, 1, 3, 4, 5)]


def test_a_trial_is_drawn_at_its_number_in_whatever_order_the_log_has_them() -> None:
    records = transposes()
    chart = convergence_chart([*records[3:], *records[:3]])
    drawn = {x for line in chart.axes.lines[1:] for x in line.get_xdata()}
    assert drawn == {0, 1, 2, 3, 4, 5}
    assert chart.axes.lines[0].get_xydata().tolist()[0] == [0, 9.0]


def test_drawings_of_one_page_share_no_name() -> None:
    """Only shapes that a drawing refers to have a name, the same for the same shape."""
    drawn = ET.fromstring(convergence_chart(transposes()).svg())
    named = {one.get("id") for one in drawn.iter() if one.get("id")}
    assert {one.tag for one in drawn.iter() if one.get("id")} <= {f"{SVG}path", f"{SVG}clipPath"}
    assert {one.get("href", "#")[1:] for one in drawn.iter(f"{SVG}use")} <= named


def test_details_are_escaped_and_a_model_is_called_one() -> None:
    assert "It is &lt;b&gt;wrong&lt;/b&gt;" in convergence_chart(transposes()).svg()
    drawn = convergence_chart([modelled(0, 100.0), modelled(1, 90.0)]).svg()
    assert "a model, not a time" in drawn
    assert "trial 1: modelled cost 90" in drawn


def test_an_h200_is_put_under_measured_roofs() -> None:
    found = roofline([("winner", transposes()[4])], flops=0.0, traffic=8.0 * 256 * 256)
    assert found is not None
    (point,) = found.points
    assert point.traffic == pytest.approx(8 * 256 * 256 / 8e-6 / 1e12)
    assert found.bound(point) == pytest.approx(point.traffic / 4.2)
    drawn = roofline_chart(found).svg()
    assert "there is no arithmetic" in drawn
    assert f"{point.traffic / 4.2:.0%} of the memory roof" in drawn


def test_a_modelled_record_is_put_under_the_models_own_roofs() -> None:
    found = roofline(
        [("winner", modelled(0, 1000.0))], flops=2.0 * 128**3, traffic=3.0 * 128**2 * 2
    )
    assert found is not None
    assert found.roofs.bandwidth == H200.memory_sectors * SECTOR_BYTES
    assert found.roofs.peaks[1][1] == MULTIPROCESSORS * H200.fma
    (point,) = found.points
    assert point.work == pytest.approx(2 * 128**3 / 1000)
    assert "a model, not a measurement" in found.roofs.source
    assert 'class="point"' in roofline_chart(found).svg()


def test_products_without_tensor_cores_are_held_against_the_units_that_they_use() -> None:
    roofs = roofs_of(replace(transposes()[4], workload=Workload("matmul", (64, 64, 64), "float16")))
    assert roofs is not None
    assert [name for name, _ in roofs.peaks] == ["float32 units"]


def test_no_roof_is_invented() -> None:
    other = measured(0, 5.0, device="NVIDIA A100")
    assert roofs_of(other) is None
    assert roofline([("winner", other)], 1.0, 1.0) is None
    assert roofline([], 1.0, 1.0) is None
    assert roofline([("winner", transposes()[4])], 0.0, 0.0) is None


def test_numbers_have_four_digits() -> None:
    values = {
        0.0: "0",
        8320.0: "8,320",
        12.3456: "12.35",
        0.012344: "0.01234",
        1e6 + 0.5: "1,000,000",
    }
    assert {value: number(value) for value in values} == values


@pytest.mark.parametrize(
    ("dtype", "unit", "rate", "words"),
    [
        ("float16", "TFLOPS", 1.0, "1.7 GHz mma.sync in half precision that of arithmetic."),
        ("float32", "TFLOPS", 494 / 989, "half precision, by 494 of 989 peak TFLOPS for tf32 that"),
        ("int8", "TOPS", 1979 / 989, "half precision, by 1979 of 989 peak TOPS for int8 that"),
        ("float8_e5m2", "TFLOPS", 1.0, "mma.sync in fp8 as half precision that"),
    ],
)
def test_the_roof_of_tensor_cores_is_the_types(
    dtype: str, unit: str, rate: float, words: str
) -> None:
    work = Workload("gemm_nt", (256, 256, 256), dtype)
    roofs = roofs_of(replace(transposes()[4], workload=work))
    model = roofs_of(replace(modelled(0, 1.0), workload=work))
    assert roofs is not None
    assert model is not None
    names = [name for name, _ in roofs.peaks]
    assert ("wgmma" in names) == (dtype == "float16")
    assert roofs.work == unit
    # 2,800 operations a cycle of 132 multiprocessors at 1.7 GHz.
    assert roofs.peaks[0][1] == pytest.approx(rate * 628.32)
    assert words in roofs.source
    assert model.peaks[0][1] == pytest.approx(rate * 132 * 2800)


def test_the_point_lies_where_its_scales_put_it() -> None:
    """At the ridge, work over traffic, a kernel at both roofs is at their corner."""
    found = roofline([("winner", modelled(0, 1.0))], flops=369600.0, traffic=2624.0)
    assert found is not None
    assert found.bound(found.points[0]) == pytest.approx(1.0)
    slope, *_, dot = roofline_chart(found).axes.lines
    assert slope.get_xydata()[-1] == pytest.approx(dot.get_xydata()[0])


def test_the_winners_name_stays_clear_of_the_axis() -> None:
    """A kernel of few operations a byte had its name over the numbers of the axis."""
    record = measured(0, 100.0)
    found = roofline([("winner", record)], 1e7, 1.6e8)
    assert found is not None
    axes = roofline_chart(found).axes
    (name,) = (text for text in axes.texts if text.get_text() == "winner")
    axes.figure.canvas.draw()
    assert name.get_window_extent().x0 > axes.get_window_extent().x0
