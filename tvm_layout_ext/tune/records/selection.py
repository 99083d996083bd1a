"""Which record of a database stands for a function: the same computation, GPU and versions.

TVM's own query (``query_schedule``, ``MetaScheduleApplyDatabase``) compares the computation alone,
and takes the least seconds of all targets, versions and runners.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.s_tir import meta_schedule as ms

from ..measure import environment
from ..space.functions import bare, same_function
from .stored import Stored

__all__ = ["Selection", "current_versions", "select"]


def current_versions() -> tuple[str, str]:
    """Of TVM and of this package, as records name them."""
    versions = environment.versions()
    return str(versions["tvm"]), str(versions["package"])


@dataclass(frozen=True)
class Selection:
    """The records of a database that may be used here.

    Attributes
    ----------
    records : list of Stored
        Best first: those that were measured by their seconds, then those that were modelled.
    foreign : int
        How many were left out: of another architecture, of other versions, or of none.
    failed : int
        How many are of trials that failed.
    """

    records: list[Stored]
    foreign: int = 0
    failed: int = 0

    def best(self, func: tirx.PrimFunc) -> Stored | None:
        """The best record of a function's computation."""
        wanted = bare(func)
        return next((one for one in self.records if same_function(_main(one), wanted)), None)

    def memory(self) -> ms.database.MemoryDatabase:
        """The same as a database of TVM's own, whose queries then cannot find anything else.

        Where a computation has measured and modelled records, it holds the measured ones.
        """
        database = ms.database.MemoryDatabase()
        measured = [one for one in self.records if _measured(one)]
        known = [_main(one) for one in measured]
        modelled = [
            one
            for one in self.records
            if not _measured(one) and not any(same_function(k, _main(one)) for k in known)
        ]
        for one in (*measured, *modelled):
            database.commit_workload(one.workload)
            database.commit_tuning_record(one.record())
        return database


def select(
    records: Iterable[Stored], arch: str, versions: Sequence[str] | None = None
) -> Selection:
    """Choose the records that hold on an architecture, for these versions of TVM and the package.

    Parameters
    ----------
    records : iterable of Stored
    arch : str
        ``sm_90a``, ...
    versions : sequence of str, optional
        By default those that are installed.
    """
    wanted = tuple(versions or current_versions())
    good, foreign, failed = [], 0, 0
    for one in records:
        if one.arch != arch or one.origin is None or one.origin.versions != wanted:
            foreign += 1
        elif one.seconds is None:
            failed += 1
        else:
            good.append(one)
    return Selection(sorted(good, key=_order), foreign, failed)


def _order(one: Stored) -> tuple[bool, float]:
    return not _measured(one), one.seconds or 0.0


def _measured(one: Stored) -> bool:
    return one.origin is not None and one.origin.measured


def _main(one: Stored) -> tirx.PrimFunc:
    ((_, function),) = one.workload.functions_items()
    return bare(function)
