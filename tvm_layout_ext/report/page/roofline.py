"""Where a kernel stands under the roofs of its GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...gpu.hardware import MULTIPROCESSORS, SECTOR_BYTES, TENSOR_TFLOPS, mma_sync_rate
from ...tune.cost import FLOPS_PER_CYCLE, SECTORS_PER_CYCLE
from ...tune.latency import H200
from ...tune.records import Record
from .drawing import GREY, INK, Frame, Scale, mark, number, sheet, text

__all__ = ["Point", "Roofline", "Roofs", "roofline", "roofline_svg", "roofs_of", "work_unit"]

_WIDTH, _HEIGHT = 480, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 22, 34, 48
#: Pixels that a point's name takes.
_LABEL = 60
_COLOURS = {"winner": "#0b6bcb", "default": "#b26a00"}


@dataclass(frozen=True)
class Roofs:
    """What bounds every kernel.

    Attributes
    ----------
    work, traffic : str
        Units of work and of bytes, e.g. ``TFLOPS`` and ``TB/s``.
    bandwidth : float
        Of device memory, in ``traffic``.
    peaks : tuple of (str, float)
        Name and height of each roof of arithmetic, in ``work``.
    source : str
        Where they come from, one sentence.
    """

    work: str
    traffic: str
    bandwidth: float
    peaks: tuple[tuple[str, float], ...]
    source: str


#: What ``mma.sync`` multiplies, in words; others have the roof of half precision.
_NAMES = {"float32": "tf32", "int8": "int8", "uint8": "uint8"} | dict.fromkeys(
    ("float8_e4m3fn", "float8_e5m2"), "fp8 as half precision"
)
_HALF = "half precision"


def _h200(dtype: str) -> Roofs:
    """Those of the closed-form model, ``tune/latency.py``, which names the measurements."""
    rate, name, unit = mma_sync_rate(dtype), _NAMES.get(dtype, _HALF), work_unit(dtype)
    by = (
        f", by {TENSOR_TFLOPS[dtype]} of {TENSOR_TFLOPS['float16']} peak {unit} for {name}"
        if rate != 1
        else ""
    )
    told = _HALF if by else name
    return Roofs(
        unit,
        "TB/s",
        H200.memory / 1e12,
        (
            ("mma.sync", rate * H200.tensor * H200.clock * MULTIPROCESSORS / 1e12),
            ("float32 units", H200.fma * H200.clock * MULTIPROCESSORS / 1e12),
        ),
        "Roofs of an H200 as this package's benchmarks reach them: copies the memory's, and at "
        f"{H200.clock / 1e9:g} GHz mma.sync in {told}{by} that of arithmetic.",
    )


def work_unit(dtype: str) -> str:
    """Unit of a measured kernel's arithmetic on operands of a type."""
    return "TOPS" if dtype in ("int8", "uint8") else "TFLOPS"


def _model(dtype: str) -> Roofs:
    return Roofs(
        "flops a modelled cycle",
        "bytes a modelled cycle",
        float(SECTORS_PER_CYCLE * SECTOR_BYTES),
        (
            ("tensor cores", mma_sync_rate(dtype) * MULTIPROCESSORS * H200.tensor),
            ("float32 units", float(MULTIPROCESSORS * FLOPS_PER_CYCLE)),
        ),
        "Points and roofs are those of the modelled cost: a model, not a measurement.",
    )


@dataclass(frozen=True)
class Point:
    """A kernel.

    Attributes
    ----------
    name : str
        ``winner`` or ``default``.
    work, traffic : float
        Achieved, in the units of the roofs.
    """

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
        memory = point.traffic / self.roofs.bandwidth
        peak = max(height for _, height in self.roofs.peaks)
        return max(memory, point.work / peak)

    def sentences(self) -> list[str]:
        """Each kernel's figures in words, and where the roofs come from."""
        roofs = self.roofs
        told = []
        for point in self.points:
            work = f"{number(point.work)} {roofs.work}, " if point.work else ""
            told.append(
                f"{point.name}: {work}{number(point.traffic)} {roofs.traffic} of least traffic, "
                f"{point.traffic / roofs.bandwidth:.0%} of the memory roof"
            )
        return [f"{'; '.join(told)}.", roofs.source]


def roofs_of(record: Record) -> Roofs | None:
    """The roofs for a record: the model's if it is modelled, an H200's, or none that is known.

    That of tensor cores is the one of the workload's type.
    """
    dtype = record.workload.dtype
    if not record.measured:
        return _model(dtype)
    return _h200(dtype) if record.device == "NVIDIA H200" else None


def roofline(
    records: Sequence[tuple[str, Record]], flops: float, traffic: float
) -> Roofline | None:
    """Place some records of one workload.

    Parameters
    ----------
    records : sequence of (str, Record)
        Each with its name; those that failed are left out.
    flops, traffic : float
        Arithmetic operations, and bytes that must at least move.

    Returns
    -------
    Roofline or None
        None if the device's roofs are not known, or nothing moves.
    """
    worked = [(name, record) for name, record in records if record.score]
    roofs = roofs_of(records[0][1]) if records else None
    if roofs is None or not worked or not traffic:
        return None
    unit = 1e12 if worked[0][1].measured else 1.0
    points = [
        Point(name, flops / (record.score or 1.0) / unit, traffic / (record.score or 1.0) / unit)
        for name, record in worked
    ]
    return Roofline(roofs, points)


def roofline_svg(found: Roofline) -> str:
    """Draw the roofs and the kernels; bars of bandwidth for kernels without arithmetic."""
    if not all(point.work > 0 for point in found.points):
        return _bars(found)
    roofs = found.roofs
    ridge = max(height for _, height in roofs.peaks) / roofs.bandwidth
    intensities = [point.intensity for point in found.points]
    x = Scale.around([*intensities, ridge, ridge / 100], _LEFT, _WIDTH - _RIGHT, logarithmic=True)
    heights = [point.work for point in found.points] + [height for _, height in roofs.peaks]
    y = Scale.around([*heights, x.low * roofs.bandwidth], _HEIGHT - _BOTTOM, _TOP, logarithmic=True)
    parts = Frame(x, y, "flops a byte of least traffic", roofs.work).draw()
    parts += _roofs(roofs, x, y)
    for point in found.points:
        parts.append(_dot(found, point, x, y))
    return sheet(_WIDTH, _HEIGHT, "roofline", parts)


def _roofs(roofs: Roofs, x: Scale, y: Scale) -> list[str]:
    parts: list[str] = []
    highest = max(height for _, height in roofs.peaks)
    ridge = highest / roofs.bandwidth
    start = x.low * roofs.bandwidth
    slope = f"M{x.at(x.low):.1f} {y.at(start):.1f}L{x.at(ridge):.1f} {y.at(highest):.1f}"
    detail = f"memory: {number(roofs.bandwidth)} {roofs.traffic}"
    parts.append(mark(f'<path d="{slope}" fill="none" stroke="{INK}" stroke-width="1.5"/>', detail))
    for name, height in roofs.peaks:
        first = height / roofs.bandwidth
        flat = f"M{x.at(first):.1f} {y.at(height):.1f}H{x.end:.1f}"
        told = f"{name}: {number(height)} {roofs.work}"
        parts.append(
            mark(f'<path d="{flat}" fill="none" stroke="{INK}" stroke-width="1.5"/>', told)
        )
        parts.append(text(x.end, y.at(height) - 5, told, fill=GREY, anchor="end"))
    return parts


def _dot(found: Roofline, point: Point, x: Scale, y: Scale) -> str:
    colour = _COLOURS.get(point.name, INK)
    at = x.at(point.intensity), y.at(point.work)
    detail = (
        f"{point.name}: {number(point.work)} {found.roofs.work} at {number(point.intensity)} flops "
        f"a byte, {found.bound(point):.0%} of the nearest roof"
    )
    dot = f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="5" fill="{colour}"/>'
    return mark(dot + _name(point, at, x, colour), detail, "point")


def _name(point: Point, at: tuple[float, float], x: Scale, colour: str) -> str:
    """Above the winner and below the default, which may be near; inward at the right edge."""
    y = at[1] - 9 if point.name == "winner" else at[1] + 18
    inward = at[0] > x.end - _LABEL
    return text(at[0], y, point.name, fill=colour, anchor="end" if inward else "start")


def _bars(found: Roofline) -> str:
    """Bandwidth against the memory roof."""
    roofs = found.roofs
    most = max(roofs.bandwidth, *(point.traffic for point in found.points)) * 1.02
    x = Scale(0.0, most, _LEFT, _WIDTH - _RIGHT)
    height = 70 + 40 * len(found.points)
    y = Scale(0.0, 1.0, height - 42, 30)
    parts: list[str] = []
    for index, point in enumerate(found.points):
        top = 36 + 40 * index
        width = x.at(point.traffic) - x.start
        share = f"{point.traffic / roofs.bandwidth:.0%} of the memory roof"
        bar = (
            f'<rect x="{x.start}" y="{top}" width="{width:.1f}" height="24" rx="3" '
            f'fill="{_COLOURS.get(point.name, INK)}"/>'
        )
        detail = f"{point.name}: {number(point.traffic)} {roofs.traffic}, {share}"
        parts.append(mark(bar, detail, "point"))
        parts.append(text(x.start - 6, top + 16, point.name, anchor="end"))
    roof = x.at(roofs.bandwidth)
    line = f'<line x1="{roof:.1f}" y1="24" x2="{roof:.1f}" y2="{y.start}" stroke="{INK}"/>'
    parts.append(mark(line, f"memory: {number(roofs.bandwidth)} {roofs.traffic}"))
    parts.append(text(roof, 18, "memory roof", fill=GREY, anchor="end"))
    for value in x.ticks():
        parts.append(text(x.at(value), y.start + 16, number(value), fill=GREY, anchor="middle"))
    name = f"{roofs.traffic} of least traffic; there is no arithmetic"
    parts.append(text((x.start + x.end) / 2, y.start + 34, name, fill=GREY, anchor="middle"))
    return sheet(_WIDTH, height, "share of the memory roof", parts)
