"""What results print in a prompt, at most ten lines, and show in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import tvm_layout_ext as tlx
from tests.programs.pipelined import Stream
from tests.report.test_explain import make_transpose
from tvm_layout_ext.report.explain import explain
from tvm_layout_ext.simulation import simulate
from tvm_layout_ext.text import brief
from tvm_layout_ext.tune.apply.module import ModuleResult
from tvm_layout_ext.tune.search.tune import Result, tune


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    log = tmp_path_factory.mktemp("log")
    return tune(
        "transpose", shape=(256, 256), dtype="float32", trials=3, runner="simulate", log=log,
        progress=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def shown(result: Result) -> dict[str, Any]:
    s, args = make_transpose(0)
    a = np.zeros((64, 64), "float32")
    return {
        "explanation": explain(s, args),
        "report": simulate(s, a, None, args=args),
        "record": result.best,
        "result": result,
        "module": ModuleResult("log", {f"f{n}": result for n in range(50)}, {"g": "why<not>"}),
        "schedule": s,
        "layout": tlx.layout.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0]),
        "shared": tlx.layout.SwizzledSharedLayout(1, 1, 4, [1, 0]),
        "program": tlx.device_program(s, args),
        "pipeline": tlx.explain_pipeline(Stream(2).schedule((2, 4))),
        "target": result.target,
        "operator": tlx.op("transpose"),
        "knob": tlx.knob("tile", [16, 32]),
        "limit": explain(s, args).limit,
        "intrinsics": tlx.intrin,
    }


HTML = ["explanation", "report", "result", "module", "schedule", "layout", "shared"]
PLAIN = ["record", "program", "pipeline", "target", "operator", "knob", "limit", "intrinsics"]


@pytest.mark.parametrize("show", [str, repr])
@pytest.mark.parametrize("name", [*HTML, *PLAIN])
def test_a_prompt_shows_ten_lines_at_most(
    shown: dict[str, Any], name: str, show: Callable[[Any], str]
) -> None:
    text = show(shown[name])
    assert len(text.split("\n")) <= 10
    assert max(map(len, text.split("\n"))) < 400


def test_print_says_what_to_do_and_where_the_rest_is(shown: dict[str, Any]) -> None:
    told, whole = str(shown["explanation"]), shown["explanation"].text()
    assert shown["explanation"].advice[0].line in told
    assert "Limit: " in told
    assert told.endswith("code with counters beside its lines.")
    assert whole.count("\n") > 30
    assert "text() has every access" in str(shown["report"])
    assert "A_shared  shared" in shown["report"].text()


def test_parts_that_do_not_fit_are_left_out_whole() -> None:
    text = brief(["one", "two\nlines", "\n" * 8, "four", "x" * 400], "more")
    assert text.split("\n")[:4] == ["one", "two", "lines", "four"]
    assert text.endswith("xxx...\nmore")


@pytest.mark.parametrize("name", HTML)
def test_a_notebook_shows_html_that_is_closed(shown: dict[str, Any], name: str) -> None:
    html = shown[name]._repr_html_()
    open_tags: list[str] = []

    class Check(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Check().feed(html)
    assert open_tags == []
    assert len(html) > 100


def test_what_is_shown_says_what_matters(shown: dict[str, Any], result: Result) -> None:
    assert "3,968 bank conflicts" in repr(shown["explanation"])
    assert "outputs B (64, 64)" in repr(shown["report"])
    assert repr(shown["module"]).endswith("and 44 more")
    assert "why&lt;not&gt;" in shown["module"]._repr_html_()
    assert result.best is not None
    assert result.best.id in repr(result)
    assert "Limit: " in shown["explanation"]._repr_html_()


def test_accesses_that_differ_in_their_line_are_one_row() -> None:
    s, args = make_transpose(1)
    report = simulate(s, np.zeros((64, 64), "float32"), None, args=args)
    twice = [report.accesses[0], report.accesses[0], *report.accesses[1:]]
    report.accesses = twice
    assert len(report.table()[1]) == 4
    assert int(report.table()[1][0][4]) == 2 * twice[0].requests
