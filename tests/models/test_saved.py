"""A compiled module of PyTorch comes back from a file."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_layout_ext as tlx
from tvm_layout_ext.models.for_torch import library, torch_module
from tvm_layout_ext.models.for_torch.torch_module import TorchMachine, TorchModule

torch = pytest.importorskip("torch")
HOPPER = tlx.cuda_target("sm_90a")


class OnHost(TorchModule):
    """A module whose executable is of the CPU."""

    def _machine(self, _given: Any) -> TorchMachine:
        main = relax.VirtualMachine(self.executable, tvm.cpu())["main"]

        def run(*given: Any) -> Any:
            return main(*map(tvm.runtime.from_dlpack, given[: len(given) - len(self._weights)]))

        return TorchMachine(run, weights=self._weights)


class Counting(torch.nn.Module):  # type: ignore[misc]
    """Adds up what it was given, and gives it by name."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.register_buffer("total", torch.zeros(16))

    def forward(self, x: Any, *, scale: Any) -> dict[str, Any]:
        self.total += x.sum(0)
        return {"out": [self.linear(x) * scale], "total": self.total * 1}


def compiled(module: Any, *given: Any, **named: Any) -> Any:
    """A module of the CPU."""
    made = tlx.compile_torch(module, *given, target=HOPPER, **named)
    made.__class__ = OnHost
    made.executable = tvm.compile(made.mod, "llvm")
    return made


@pytest.fixture(scope="module")
def counting() -> Any:
    torch.manual_seed(0)
    module = Counting().eval()
    shapes = {"x": {0: torch.export.Dim("rows", min=2, max=64)}, "scale": None}
    kwargs = {"scale": torch.ones(1)}
    return module, compiled(module, (torch.ones(4, 16),), kwargs, dynamic_shapes=shapes)


@pytest.fixture
def loaded(counting: Any, tmp_path: Path) -> Any:
    _, made = counting
    made.buffers = {"total": torch.arange(16.0)}
    made._weights = [tvm.runtime.tensor(np.arange(3, dtype="float32"))]
    made.save(tmp_path / "net.tlx")
    return tlx.load_torch(tmp_path / "net.tlx")


def test_a_module_comes_back_with_weights_and_buffers(counting: Any, loaded: Any) -> None:
    module, made = counting
    module.total.copy_(torch.arange(16.0))
    for rows in (5, 64):
        x, scale = torch.randn(rows, 16), torch.randn(1)
        with torch.no_grad():
            wanted = module(x, scale=scale)
        found = loaded(x, scale=scale)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loaded.buffers["total"], module.total)
    assert [one.tolist() for one in loaded._weights] == [[0, 1, 2]]
    assert loaded.mod is None
    assert (loaded.choices, repr(loaded)) == (made.choices, repr(made))


def test_what_it_refuses_it_still_refuses(loaded: Any) -> None:
    x, scale = torch.ones(4, 16), torch.ones(1)
    with pytest.raises(tlx.ScheduleError, match=r"x\.shape\[0\] is 65, exported for 1 to 64"):
        loaded(torch.ones(65, 16), scale=scale)
    with pytest.raises(tlx.ScheduleError, match=r"x is float32 of \(4, 8\), compiled for float32"):
        loaded(torch.ones(4, 8), scale=scale)
    with pytest.raises(tlx.ScheduleError, match="Arguments are"):
        loaded(x)


def test_other_files_and_versions_are_refused(
    counting: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    with pytest.raises(tlx.ScheduleError, match="file is no saved module"):
        tlx.load_torch(path)
    torch.save([1], path)
    with pytest.raises(tlx.ScheduleError, match=r"file holds a list, not what save\(\) wrote"):
        tlx.load_torch(path)
    with pytest.raises(tlx.ScheduleError, match=r"There is no file .*other"):
        tlx.load_torch(tmp_path / "other")
    counting[1].save(path)
    monkeypatch.setattr(library, "tvm_version", lambda: "0.28")
    with pytest.raises(tlx.ScheduleError, match=r"saved by apache-tvm 0\.27.*; here is 0\.28\."):
        tlx.load_torch(path)


def test_a_loaded_module_is_saved_again_and_a_failed_save_changes_nothing(
    loaded: Any, tmp_path: Path
) -> None:
    path = tmp_path / "net.tlx"
    loaded.save(path)
    assert [one.tolist() for one in loaded._weights] == [[0, 1, 2]]
    again, before = tlx.load_torch(path), path.read_bytes()
    x, scale = torch.ones(4, 16), torch.ones(1)
    torch.testing.assert_close(again(x, scale=scale), loaded(x, scale=scale))
    again.buffers = {}
    with pytest.raises(tlx.ScheduleError, match="buffers has no total"):
        again.save(path)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["net.tlx"]


def test_a_copy_shares_all(counting: Any) -> None:
    module = counting[1]
    assert copy.copy(module).__dict__ == module.__dict__


def test_without_a_driver_or_a_compiler_nothing_is_saved(
    counting: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "has_cuda_runtime", lambda: False)
    text = tlx.compile_torch(torch.nn.ReLU().eval(), (torch.ones(64),), target=HOPPER)
    with pytest.raises(tlx.TargetError, match="no machine code to save"):
        text.save(tmp_path / "net.tlx")
    counting[1].save(tmp_path / "net.tlx")

    def fails(_: Any) -> Any:
        raise RuntimeError("no loader")

    monkeypatch.setattr(tvm.runtime, "load_module", fails)
    with pytest.raises(tlx.TargetError, match="where there is a CUDA driver"):
        tlx.load_torch(tmp_path / "net.tlx")
    monkeypatch.setattr(library.cc, "get_cc", lambda: None)
    with pytest.raises(tlx.TargetError, match=r"there is no C\+\+ compiler"):
        counting[1].save(tmp_path / "net.tlx")


def test_a_gpu_of_another_capability_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    torch_module._check_capability("sm_80", "cuda:0")
    with pytest.raises(tlx.TargetError, match=r"sm_90a and runs on 9\.0; cuda:1 has .* 8\.0\."):
        torch_module._check_capability("sm_90a", "cuda:1")
    with pytest.raises(tlx.TargetError, match=r"sm_86 and runs on 8\.6 to 8\.x; .* 8\.0\."):
        torch_module._check_capability("sm_86", "cuda:0")


@pytest.mark.gpu
def test_another_process_runs_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()).eval().half().cuda()
    x = torch.randn(64, 512, dtype=torch.float16, device="cuda")
    fast = tlx.compile_torch(module, (x,), cuda_graphs=True)
    wanted = fast(x)
    fast.save(tmp_path / "net.tlx")
    torch.save(x, tmp_path / "x.pt")
    code = (
        "import torch, tvm_layout_ext as tlx\n"
        f"fast = tlx.load_torch(r'{tmp_path}/net.tlx')\n"
        f"x = torch.load(r'{tmp_path}/x.pt')\n"
        "for _ in range(4): y = fast(x)\n"
        f"torch.save(y, r'{tmp_path}/y.pt')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    assert torch.equal(torch.load(tmp_path / "y.pt"), wanted)
    with torch.no_grad():
        torch.testing.assert_close(wanted, module(x), atol=2e-3, rtol=2e-3)
