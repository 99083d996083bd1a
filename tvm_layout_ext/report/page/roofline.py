"""Where a kernel stands under the roofs of its GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...gpu.hardware import MULTIPROCESSORS, SECTOR_BYTES, TENSOR_TFLOPS, mma_sync_rate
from ...gpu.measured import H200
from ...tune.records.log import Record
from ..text import number

__all__ = ["Point", "Roofline", "Roofs", "roofline", "roofs_of", "work_unit"]


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
    """Those of the closed-form model, ``tune/model/latency.py``, which names the measurements."""
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
        float(H200.memory_sectors * SECTOR_BYTES),
        (
            ("tensor cores", mma_sync_rate(dtype) * MULTIPROCESSORS * H200.tensor),
            ("float32 units", float(MULTIPROCESSORS * H200.fma)),
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
