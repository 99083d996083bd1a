from __future__ import annotations

from typing import Any

import pytest

from tvm_layout_ext.coalesce.staging import apply
from tvm_layout_ext.coalesce.staging.plan import TilePlan


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, TilePlan]]:
    """The nests that are staged from now on, and how."""
    made: list[tuple[Any, TilePlan]] = []
    plan_tile = apply.plan_tile

    def spy(nest: Any, *arguments: Any, **more: Any) -> TilePlan:
        made.append((nest, plan_tile(nest, *arguments, **more)))
        return made[-1][1]

    monkeypatch.setattr(apply, "plan_tile", spy)
    return made
