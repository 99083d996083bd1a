"""Where a kernel stands under the roofs of its GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...gpu.hardware import MULTIPROCESSORS, SECTOR_BYTES, TENSOR_TFLOPS, mma_sync_rate
from ...gpu.measured import H200
from ...gpu.warpgroups import WARPGROUP_RATE
from ...text import number
from ...tune.records.log import Record
from ..drawing.figures import Chart

#: What ``mma.sync`` multiplies, in words; others have the roof of half precision.
_NAMES = {"float32": "tf32", "int8": "int8", "uint8": "uint8"} | dict.fromkeys(
    ("float8_e4m3fn", "float8_e5m2"), "fp8 as half precision"
)
_HALF = "half precision"
#: The operator that multiplies on the units of float32.
_WITHOUT_TENSOR_CORES = "matmul"
#: What warpgroups multiply here.
_OF_WARPGROUPS = ("float16", "bfloat16")
_COLOURS = {"winner": "#0b6bcb", "default": "#b26a00"}
_INK = "#1b1f24"


@dataclass(frozen=True)
class Roofs:
    """What bounds every kernel.

    ``work`` and ``traffic`` are units, such as ``TFLOPS`` and ``TB/s``. ``bandwidth`` is that of
    device memory; ``peaks`` are name and height of each roof of arithmetic. ``source`` is one
    sentence.
    """

    work: str
    traffic: str
    bandwidth: float
    peaks: tuple[tuple[str, float], ...]
    source: str

    @property
    def highest(self) -> float:
        """The highest roof of arithmetic."""
        return max(height for _, height in self.peaks)


def _h200(dtype: str) -> Roofs:
    """Those of the closed-form model, ``tune/model/latency.py``, which names the measurements."""
    rate, name, unit = mma_sync_rate(dtype), _NAMES.get(dtype, _HALF), work_unit(dtype)
    by = (
        f", by {TENSOR_TFLOPS[dtype]} of {TENSOR_TFLOPS['float16']} peak {unit} for {name}"
        if rate != 1
        else ""
    )
    peaks: tuple[tuple[str, float], ...] = (
        ("mma.sync", rate * H200.tensor * H200.clock * MULTIPROCESSORS / 1e12),
        ("float32 units", H200.fma * H200.clock * MULTIPROCESSORS / 1e12),
    )
    if dtype in _OF_WARPGROUPS:
        peaks += (("wgmma", WARPGROUP_RATE * H200.clock * MULTIPROCESSORS / 1e12),)
    source = (
        "Roofs of an H200 as this package's benchmarks reach them: copies the memory's, and at "
        f"{H200.clock / 1e9:g} GHz mma.sync in {_HALF if by else name}{by} that of arithmetic."
    )
    return Roofs(unit, "TB/s", H200.memory / 1e12, peaks, source)


def work_unit(dtype: str) -> str:
    """Unit of a measured kernel's arithmetic on operands of a type."""
    return "TOPS" if dtype in ("int8", "uint8") else "TFLOPS"


def _model(dtype: str) -> Roofs:
    return Roofs(
        "flops a modelled cycle",
        "bytes a modelled cycle",
        float(H200.memory_sectors * SECTOR_BYTES),
        (
            ("tensor cores", mma_sync_rate(dtype) * MULTIPROCESSORS * H200.tensor),
            ("float32 units", float(MULTIPROCESSORS * H200.fma)),
        ),
        "Points and roofs are those of the modelled cost: a model, not a measurement.",
    )


@dataclass(frozen=True)
class Point:
    """A kernel, ``winner`` or ``default``: work and traffic achieved, in the units of the roofs."""

    name: str
    work: float
    traffic: float

    @property
    def intensity(self) -> float:
        """Work over least traffic."""
        return self.work / self.traffic


@dataclass(frozen=True)
class Roofline:
    """Kernels under roofs."""

    roofs: Roofs
    points: list[Point]

    def bound(self, point: Point) -> float:
        """The share of the nearest roof that a kernel reaches."""
        return max(point.traffic / self.roofs.bandwidth, point.work / self.roofs.highest)

    def binding(self, point: Point) -> str:
        """That share and the roof's name in words."""
        of_memory = self.rate(point)[1] == self.roofs.traffic
        name = "memory" if of_memory else max(self.roofs.peaks, key=lambda peak: peak[1])[0]
        return f"{self.bound(point):.0%} of the {name} roof"

    def rate(self, point: Point) -> tuple[float, str]:
        """What the binding roof is of, and its unit."""
        of_work = point.work / self.roofs.highest > point.traffic / self.roofs.bandwidth
        return (point.work, self.roofs.work) if of_work else (point.traffic, self.roofs.traffic)

    def moves(self, point: Point) -> str:
        """A kernel's traffic in words, and the roof that binds it."""
        moved = f"{number(point.traffic)} {self.roofs.traffic} of least traffic"
        return f"{moved}, {self.binding(point)}"

    def sentences(self) -> list[str]:
        """Each kernel's figures in words, and where the roofs come from."""
        told = []
        for point in self.points:
            work = f"{number(point.work)} {self.roofs.work}, " if point.work else ""
            told.append(f"{point.name}: {work}{self.moves(point)}")
        return [f"{'; '.join(told)}.", self.roofs.source]


def winner_of(found: Roofline | None) -> Point | None:
    """The winner under the roofs."""
    return next((p for p in found.points if p.name == "winner"), None) if found else None


def roofs_of(record: Record) -> Roofs | None:
    """The roofs for a record: the model's if it is modelled, an H200's, or none that is known."""
    dtype = record.workload.dtype
    if not record.measured:
        return _model(dtype)
    if record.device != "NVIDIA H200":
        return None
    found = _h200(dtype)
    is_plain = record.workload.operator == _WITHOUT_TENSOR_CORES
    return replace(found, peaks=found.peaks[1:2]) if is_plain else found


def roofline(
    records: Sequence[tuple[str, Record]], flops: float, traffic: float
) -> Roofline | None:
    """Place some records of one workload, each with its name; those that failed are left out.

    ``flops`` and ``traffic`` are arithmetic operations, and bytes that must at least move. None if
    the device's roofs are not known, or nothing moves.
    """
    worked = [(name, record.score) for name, record in records if record.score]
    roofs = roofs_of(records[0][1]) if records else None
    if roofs is None or not worked or not traffic:
        return None
    unit = 1e12 if records[0][1].measured else 1.0
    points = [Point(name, flops / score / unit, traffic / score / unit) for name, score in worked]
    return Roofline(roofs, points)


def roofline_chart(found: Roofline) -> Chart:
    """Draw the roofs and the kernels; bars of bandwidth for kernels without arithmetic."""
    if not all(point.work > 0 for point in found.points):
        return _bars(found)
    chart = Chart("roofline")
    axes, roofs = chart.axes, found.roofs
    ridge = roofs.highest / roofs.bandwidth
    # The winner's name is at the left of its dot, before which it needs half a decade.
    low = min(ridge / 60, *(point.intensity for point in found.points)) / 5
    high = max(ridge, *(point.intensity for point in found.points)) * 20
    chart.set_scales(x=True, y=True)
    (slope,) = axes.plot([low, ridge], [low * roofs.bandwidth, roofs.highest], color=_INK)
    chart.tell(slope, [f"memory: {number(roofs.bandwidth)} {roofs.traffic}"])
    for name, height in roofs.peaks:
        told = f"{name}: {number(height)}"
        (roof,) = axes.plot([height / roofs.bandwidth, high], [height, height], color=_INK)
        chart.tell(roof, [f"{told} {roofs.work}"])
        _name(chart, told, (high, height), (0, 3), ha="right")
    for point in found.points:
        colour, at = _COLOURS.get(point.name, _INK), (point.intensity, point.work)
        (dot,) = axes.plot(*([value] for value in at), "o", ms=9, color=colour)
        detail = (
            f"{point.name}: {number(point.work)} {roofs.work} at {number(point.intensity)} flops "
            f"a byte, {found.binding(point)}"
        )
        chart.tell(dot, [detail], "point")
        # On either side of the dots, which may be near each other and are below the roofs.
        is_winner = point.name == "winner"
        side, away = ("right", -9) if is_winner else ("left", 9)
        _name(chart, point.name, at, (away, -4), color=colour, ha=side)
    axes.set_xlim(low, high)
    axes.margins(y=0.1)
    chart.name_axes("flops a byte of least traffic", roofs.work)
    return chart


def _name(
    chart: Chart, text: str, at: tuple[float, float], away: tuple[int, int], **style: str
) -> None:
    """Write a text near a place."""
    chart.axes.annotate(text, at, away, textcoords="offset points", fontsize=12, **style)


def _bars(found: Roofline) -> Chart:
    """Bandwidth against the memory roof."""
    roofs, points = found.roofs, found.points
    chart = Chart("share of the memory roof", height=96 + 40 * len(points))
    axes = chart.axes
    names, colours = zip(*((p.name, _COLOURS.get(p.name, _INK)) for p in points), strict=True)
    bars = axes.barh(names, [point.traffic for point in points], color=colours, height=0.6)
    for bar, point in zip(bars, points, strict=True):
        chart.tell(bar, [f"{point.name}: {found.moves(point)}"], "point")
    roof = axes.axvline(roofs.bandwidth, color=_INK, label="memory roof")
    chart.tell(roof, [f"memory: {number(roofs.bandwidth)} {roofs.traffic}"])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    chart.set_scales(only="x")
    chart.name_axes(f"{roofs.traffic} of least traffic; there is no arithmetic")
    chart.add_legend()
    return chart
