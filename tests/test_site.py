"""The documentation's site: no dead link, every public name, tutorials with what they print."""

from __future__ import annotations

import ast
import inspect
import json
import operator
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import tvm_layout_ext as tlx
from benchmarks import suites
from tests.test_docs import LINK
from tvm_layout_ext import errors
from tvm_layout_ext.schedule.install import PRIMITIVES

ROOT = Path(__file__).parents[1]


SITE: Any = runpy.run_path(str(ROOT / "docs" / "_site.py"))
EXAMPLES: dict[str, str] = SITE["examples"]()
#: Marks of an example in a docstring.
SHOWN = ("Examples\n", "::\n")


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return SITE["pages"](lambda path: f"{path.stem} was run")


def heads(text: str) -> set[str]:
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in found}


def test_no_link_of_the_site_is_dead(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        if not name.endswith(".md"):
            continue
        for target, anchor in LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
            if target.startswith("http"):
                continue
            assert target in pages or not target, f"{name} links to {target}"
            assert not anchor or anchor[1:] in heads(pages[target or name]), f"{name}: {anchor}"


def test_what_the_menu_names_is_there(pages: dict[str, str]) -> None:
    menu = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2].partition("validation:")[0]
    named = set(re.findall(r"\S+\.md", menu))
    subjects = {name for name in pages if re.fullmatch(r"[a-z].*\.md", name)}
    assert named == subjects


def test_the_reference_has_every_public_name(pages: dict[str, str]) -> None:
    text = pages["reference.md"]
    for name in dir(tlx):
        assert name.startswith("_") or f"tlx.{name}" in text, name
    assert "::: tvm_layout_ext.tune.search.tune.tune\n    options:\n      heading: tlx.tune" in text
    for name, primitive in PRIMITIVES.items():
        directive = f"::: {primitive.__module__}.{primitive.__qualname__}\n"
        assert f"{directive}    options:\n      heading: sch.{name}\n" in text


def test_every_message_that_is_raised_is_on_the_page(pages: dict[str, str]) -> None:
    page, seen = " ".join(pages["messages.md"].split()), 0
    for path in [*(ROOT / "tvm_layout_ext").rglob("*.py"), *(ROOT / "schedules").glob("*.py")]:
        for raised in ast.walk(ast.parse(path.read_text())):
            if not isinstance(raised, ast.Raise) or not isinstance(raised.exc, ast.Call):
                continue
            for said in (part for one in raised.exc.args for part in ast.walk(one)):
                text = said.value if isinstance(said, ast.Constant) else None
                if isinstance(text, str) and len(text.split()) > 3 and "%" not in text:
                    seen += 1
                    assert " ".join(text.split()) in page, f"{path.name}:{raised.lineno} {text}"
    assert seen > 700


def test_messages_have_gaps_for_what_a_run_knows(pages: dict[str, str]) -> None:
    page = pages["messages.md"]
    assert "* TargetError: `--runner rpc needs --key, a name without colons, not ….`" in page
    assert "* warning: `Skipped … in ….`" in page
    assert page.count("## schedule\n") == 1
    listed = set(re.findall(r"^\* (\w+): ", page, re.MULTILINE))
    told = page.partition("[Troubleshooting]")[0]
    ours = set(vars(errors)["__all__"]) & listed
    assert len(ours) == 6
    assert all(f"`{name}`" in told for name in ours)


def test_a_tutorial_is_prose_code_and_what_it_prints(pages: dict[str, str]) -> None:
    page = pages["01_storage_align_row_sum.md"]
    assert page.startswith("Storage alignment: the row sum\n====")
    assert "The computation\n---------------\nEach element of `B` is the sum" in page
    assert page.count("```python") >= 4
    assert page.endswith("```text\n01_storage_align_row_sum was run\n```")
    assert "#" * 70 not in page


def test_a_notebook_is_its_script(pages: dict[str, str]) -> None:
    scripts = sorted((ROOT / "tutorials").glob("*.py"))
    assert len(scripts) >= 8
    for path in scripts:
        book = json.loads(pages[f"{path.stem}.ipynb"])
        assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
        code = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
        assert code
        assert all("outputs" in cell for cell in book["cells"] if cell["cell_type"] == "code")
        script = ast.parse(path.read_text())
        script.body = script.body[1:]
        assert ast.dump(ast.parse("\n".join(code))) == ast.dump(script)
        assert f'"{path.stem}.ipynb"' in pages["tutorials.md"]


def test_the_cells_of_a_notebook_run_one_after_the_other(
    pages: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in json.loads(pages["01_storage_align_row_sum.ipynb"])["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert capsys.readouterr().out.strip()


def test_each_suite_has_a_table_and_a_picture(pages: dict[str, str]) -> None:
    text = pages["benchmarks.md"]
    for name, suite in suites.SUITES.items():
        part = text.partition(f"## {name}\n")[2].partition("\n## ")[0]
        assert len(re.findall(r"^\| ", part, re.MULTILINE)) >= 4, name
        assert suite.about in part
        assert pages[f"benchmark_{name}.svg"].count("<use") > 3


def test_every_public_callable_has_an_example(pages: dict[str, str]) -> None:
    text = pages["reference.md"]
    headings = re.findall(r"::: (\S+)\n    options:\n      heading: (\S+)", text)
    assert len(headings) > 45
    for path, heading in headings:
        module, _, name = path.rpartition(".")
        while module not in sys.modules:
            module, _, outer = module.rpartition(".")
            name = f"{outer}.{name}"
        value = operator.attrgetter(name)(sys.modules[module])
        has_own = any(mark in (inspect.getdoc(value) or "") for mark in SHOWN)
        assert has_own != (heading in EXAMPLES), f"{heading} has no example, or two"
    assert EXAMPLES.keys() - {""} <= {heading for _, heading in headings}


@pytest.mark.parametrize("names", sorted({text: name for name, text in EXAMPLES.items()}.values()))
def test_examples_of_the_reference_run(
    names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(f"{EXAMPLES['']}\n{EXAMPLES[names]}", {})
