"""Which GPUs can run what was built for another, and which servers are dropped."""

from __future__ import annotations

import pytest

from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.tune.rpc_fit import Fit, Gpu, UnfitServerError


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        ("sm_90a", "9.0", True),
        ("sm_90a", "10.0", False),
        ("sm_90a", "8.9", False),
        ("sm_80", "8.0", True),
        ("sm_80", "8.6", True),
        ("sm_86", "8.0", False),
        ("sm_80", "9.0", False),
        ("sm_90", "9.0", True),
    ],
)
def test_machine_code_runs_on_its_major_and_at_least_its_minor_capability(
    arch: str, capability: str, runs: bool
) -> None:
    fit = Fit(architecture(arch))
    assert fit.accepts("a:1", Gpu("GPU", capability), "cuda") is runs
    assert list(fit.dropped) == ([] if runs else ["a:1"])


def test_first_server_says_which_gpu_others_must_have() -> None:
    fit = Fit(architecture("sm_80"))
    assert fit.accepts("a:1", Gpu("NVIDIA A100", "8.0"), "cuda")
    assert not fit.accepts("b:1", Gpu("NVIDIA A10", "8.6"), "cuda")
    assert fit.accepts("c:1", Gpu("NVIDIA A100", "8.0"), "cuda")
    assert fit.dropped == {
        "b:1": "has the GPU NVIDIA A10, whose times cannot be compared with those of the NVIDIA "
        "A100 of the first server"
    }
    assert fit.left(["a:1", "b:1", "c:1"]) == ["a:1", "c:1"]


def test_any_server_runs_kernels_for_the_cpu() -> None:
    fit = Fit(architecture("sm_90a"))
    assert fit.accepts("a:1", Gpu("cpu", ""), "cpu")
    assert not fit.accepts("a:1", Gpu("cpu", ""), "cuda")


def test_none_left_is_an_error_and_none_at_all_is_not() -> None:
    fit = Fit(architecture("sm_90a"))
    assert fit.left([]) == []
    fit.accepts("a:1", Gpu("cpu", ""), "cuda")
    with pytest.raises(UnfitServerError) as error:
        fit.left(["a:1"])
    assert str(error.value) == (
        "No RPC server can run kernels for sm_90a: a:1 has no CUDA GPU. Start one on a machine "
        "with such a GPU and its driver."
    )
