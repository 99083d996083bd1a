"""Searches of these tests take few steps, unless the test is about where they lead."""

from __future__ import annotations

import pytest

from tests.tune.helpers import BRIEF
from tvm_layout_ext.tune.search import prepare, run


@pytest.fixture(autouse=True)
def brief(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "guided_search_learns" not in request.node.name:
        for name, value in BRIEF.items():
            monkeypatch.setattr(run if hasattr(run, name) else prepare, name, value)
