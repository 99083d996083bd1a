"""Random Relax functions through the pass, on the simulated GPU, beside TVM's CPU code."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

from tests.models.random_programs import module, random_program
from tests.models.running import TARGET, check, scheduled


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(500))
def test_random_functions_are_right(seed: int) -> None:
    name, program = random_program(seed)
    for one in scheduled(module(program)):
        assert one.choice.rule != "none", f"{name}: {one.choice.text}"
        assert one.choice.text.endswith(".")
        assert one.choice.refused or not one.choice.fell_back
        check(one)


def test_functions_that_launch_kernels_are_left_alone() -> None:
    for seed in (139, 284):
        mod = module(random_program(seed)[1])
        assert scheduled(mod) == []
        assert isinstance(tvm.compile(mod, TARGET), relax.VMExecutable)


def test_what_nobody_reads_is_not_computed() -> None:
    # A norm of fixed statistics copies these, and the fused function does not return them.
    (one,) = scheduled(module(random_program(257)[1]))
    assert one.choice.text == "T_add_1 direct."
    check(one)


def test_quotients_of_dims_of_one_element_do_not_hide_rows() -> None:
    (one,) = scheduled(module(random_program(311)[1]))
    assert one.choice.rule == "rows"
    check(one)
