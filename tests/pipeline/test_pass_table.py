"""ARCHITECTURE.md lists the passes as the pipeline runs them."""

from __future__ import annotations

from pathlib import Path

from tvm_layout_ext import pipeline

_TEXT = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text()


def test_the_table_is_that_of_the_pipeline() -> None:
    """If not: write what ``pipeline.pass_table()`` gives between the two comments."""
    _, _, rest = _TEXT.partition("<!-- pass_table() -->\n")
    table, end, _ = rest.partition("\n<!-- end of pass_table() -->")
    assert end
    assert table == pipeline.pass_table()


def test_every_pass_says_in_one_line_what_it_does() -> None:
    says = [row.split("|")[3] for row in pipeline.pass_table().splitlines()[2:]]
    assert all(4 < len(text.split()) < 20 and "Create" not in text for text in says)
