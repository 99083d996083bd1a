from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir

from tests.programs.mapped import computed
from tests.programs.running import gives
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.ir.annotations import COALESCE
from tvm_layout_ext.transform import AutoCoalesce


def annotated(value: Any) -> s_tir.Schedule:
    sch = computed((128, 64), lambda a, j, i: a[i, j], out=(64, 128))
    if value is not None:
        sch.annotate(sch.get_sblock("B"), COALESCE, value)
    return sch


def test_the_pass_does_what_the_primitive_does() -> None:
    by_pass = AutoCoalesce()(annotated([0, 16, "auto"]).mod)
    sch = annotated(None)
    sch.auto_coalesce("B")
    tvm.ir.assert_structural_equal(by_pass, sch.mod)


def test_an_annotated_function_lowers_without_more_ado() -> None:
    a = np.random.default_rng(0).standard_normal((128, 64)).astype("float32")
    report = gives(annotated([128, 16, "auto"]), a, None, B=a.T)
    assert report.bank_conflicts == 0


def test_a_wrong_request_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"num_threads to be a multiple of 32.*not 33"):
        AutoCoalesce()(annotated([33, 16, "auto"]).mod)


@pytest.mark.parametrize("value", [[64, 16], 64, ["many", 16, "auto"]])
def test_an_annotation_of_another_form_is_refused(value: Any) -> None:
    with pytest.raises(ScheduleError, match=r"Block B asks auto_coalesce by .* it takes"):
        AutoCoalesce()(annotated(value).mod)
