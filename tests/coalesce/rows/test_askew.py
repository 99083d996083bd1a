"""Rows that begin inside of vectors are read by aligned ones, and nothing outside of the buffer."""

from __future__ import annotations

import pytest
from tvm import s_tir

from benchmarks.thread_programs import Program
from tests.programs.reduced import gives_numpys
from tvm_layout_ext.coalesce.propose.askew import askew
from tvm_layout_ext.coalesce.request import Request
from tvm_layout_ext.coalesce.subject import Subject

PROGRAMS = (
    Program("sum", (37, 257), "float16", (1,)),
    Program("sum", (5, 1001), "int8", (1,)),
    Program("argmax", (9, 1001), "int8", (1,)),
    Program("max", (3, 5, 4099), "float32", (2,)),
    Program("sum", (7, 3, 43), "float16", (1, 2)),
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_aligned_vectors_give_the_rows(program: Program) -> None:
    sch = s_tir.Schedule(program.function())
    sch.fuse_rows(program.blocks)
    report = gives_numpys(program, sch)
    loads = [one for one in report.accesses if one.buffer == "A"]
    assert max(one.vector_bytes for one in loads) == 16
    wide = sum(one.sectors for one in loads if one.vector_bytes == 16)
    assert wide > 0.8 * sum(one.sectors for one in loads)


def test_a_mapping_for_all_gpus_has_no_clusters() -> None:
    sch = s_tir.Schedule(Program("sum", (16, 9001), "float16", (1,)).function())
    for one in (found := askew(Subject.of(sch, sch.get_sblock("B"), Request()))):
        mapped = sch.copy()
        assert "cluster" not in one.apply(mapped, mapped.get_sblock("B"))
    assert found


def test_auto_coalesce_takes_them_for_askew_rows() -> None:
    sch = s_tir.Schedule(Program("sum", (300000, 257), "float16", (1,)).function())
    outcome = sch.auto_coalesce("B")
    assert "8 lanes a row" in outcome.text
    assert {one.vector_bytes for one in outcome.after if one.buffer == "A"} == {16}
