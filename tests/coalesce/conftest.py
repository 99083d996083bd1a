from __future__ import annotations

from typing import Any

import pytest

from tvm_layout_ext.coalesce.staging import apply
from tvm_layout_ext.coalesce.staging.plan import Plan


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Plan]]:
    """The nests that are staged from now on, and how."""
    made: list[tuple[Any, Plan]] = []
    plan_tile = apply.plan_tile

    def spy(nest: Any, *arguments: Any, **more: Any) -> Plan:
        made.append((nest, plan_tile(nest, *arguments, **more)))
        return made[-1][1]

    monkeypatch.setattr(apply, "plan_tile", spy)
    return made
