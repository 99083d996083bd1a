from __future__ import annotations

from pathlib import Path

import pytest

from tvm_layout_ext.calls import disk


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of each test's own."""
    monkeypatch.setenv(disk.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"
