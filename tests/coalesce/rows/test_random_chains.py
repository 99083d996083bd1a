"""Random chains of blocks over rows equal NumPy, in one kernel, from TensorIR and from TE."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tvm import s_tir

import tvm_layout_ext as tlx
from tests import sampling
from tests.programs.rows import Rows, chains
from tvm_layout_ext import ScheduleError, te
from tvm_layout_ext.build import device_program


def asked(draw: Any) -> dict[str, Any]:
    """Wishes that leave most open."""
    return {
        "lanes": draw(st.sampled_from([0, 0, 1, 8, 32, 128, 1024])),
        "num_threads": draw(st.sampled_from([0, 0, 64, 256, 1024])),
        "vector_bytes": draw(st.sampled_from([16, 16, 4, 2])),
        "keep": draw(st.sampled_from(["auto", "auto", "registers", "shared", "none"])),
        "cluster": draw(st.sampled_from([0, 0, 1, 2, 8])),
    }


def outputs_of(draw: Any, chain: Rows) -> list[int]:
    """All that nothing reads, and some others."""
    stages = [i for i in range(len(chain.tensors)) if i not in chain.inputs]
    read = [t for i in stages for t in chain.tensors[i].op.input_tensors]
    return [
        i
        for i in stages
        if not any(chain.tensors[i].same_as(t) for t in read) or draw(st.booleans())
    ]


@pytest.mark.matrix
@settings(
    max_examples=sampling.matrix_examples(200),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    deadline=None,
)
@given(chains(), st.data())
def test_random_chains_equal_numpy(chain: Rows, data: Any) -> None:
    results, wishes = outputs_of(data.draw, chain), asked(data.draw)
    tensors = [chain.tensors[i] for i in (*chain.inputs, *results)]
    note(str(wishes))
    note(te.create_prim_func(tensors).script())
    try:
        if data.draw(st.booleans()):
            s = te.create_schedule([chain.tensors[i].op for i in results])
            s.fuse_rows(chain.stages, **wishes)
            sch: Any = s.to_schedule(tensors)
        else:
            sch = s_tir.Schedule(te.create_prim_func(tensors).with_attr("global_symbol", "main"))
            sch.fuse_rows(sch.get_child_blocks(sch.get_sblock("root")), **wishes)
    except ScheduleError as error:
        is_hard = wishes["lanes"] or wishes["keep"] != "auto" or wishes["cluster"] > 1
        if "finds no plan for" in str(error) and is_hard:
            note(str(error))
            return
        raise
    assert len(device_program(sch).kernels) == 1
    inputs = [chain.values[i] for i in chain.inputs]
    report = tlx.simulate(sch, *inputs, *[None] * len(results), progress=False)
    assert not report.hazards
    for i in results:
        name = str(chain.tensors[i].op.name)
        np.testing.assert_allclose(report.outputs[name], chain.values[i], rtol=2e-4, atol=2e-4)
