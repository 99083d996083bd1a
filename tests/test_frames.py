"""The quick ``getouterframes`` of the tests says what Python's says."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from typing import Any

import pytest

from tests.frames import outer_frames


def pythons() -> Any:
    """Python's own ``inspect``, as it is before conftest changes it."""
    spec = importlib.util.find_spec("inspect")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tests_use_it() -> None:
    assert inspect.getouterframes is outer_frames


@pytest.mark.parametrize("context", [0, 1, 4])
def test_frames_and_their_lines_are_pythons(context: int) -> None:
    frame = inspect.currentframe()
    found, expected = outer_frames(frame, context), pythons().getouterframes(frame, context)
    assert len(found) == len(expected) > 10
    for one, other in zip(found, expected, strict=True):
        assert one.frame is other.frame
        if Path(one.filename).exists():
            assert one == other
    assert found[0].filename == __file__


def test_class_around_a_function_is_seen() -> None:
    """TVM's parser reads the line of the frame around, to tell methods of modules by it."""

    class Around:
        line = outer_frames(inspect.currentframe())[0].code_context

    assert Around.line is not None
    assert "outer_frames" in Around.line[0]
