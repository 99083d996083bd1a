"""Links resolve, named files exist, the first kernel runs, lines are short."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.forks import ran

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tvm_layout_ext"
NAMED = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
DOCUMENTS = [*(ROOT / name for name in NAMED), *sorted((ROOT / "docs").glob("*.md"))]
EACH = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(#[^)\s]*)?\)")
#: A path in a document: below the top-level folder, or below the package.
PATH = re.compile(r"`([\w./]+(?:\.py|\.md|\.jsonl?|/))`")


def prose(document: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without blocks of code and the generated table of passes."""
    hidden = False
    for number, line in enumerate(document.read_text().splitlines(), 1):
        if line.startswith("```") or "pass_table() -->" in line:
            hidden = not hidden
        elif not hidden:
            yield number, line


def anchors(document: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


#: Modules whose docstrings have examples.
EXAMPLES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if re.search(r"^ +>>> ", path.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize("module", EXAMPLES)
def test_examples_of_docstrings_are_right(module: str) -> None:
    found = doctest.testmod(
        importlib.import_module(module), extraglobs={"np": np}, optionflags=doctest.ELLIPSIS
    )
    assert found.failed == 0


@EACH
def test_links_resolve(document: Path) -> None:
    for target, anchor in LINK.findall(document.read_text()):
        if target.startswith("http"):
            continue
        path = document.parent / target if target else document
        assert path.exists(), f"{document.name} links to {target}, which is not there"
        assert not anchor or anchor in anchors(path), f"{target} has no heading {anchor}"


def test_no_document_links_to_another_site() -> None:
    """Whether such links answer could not be asked in CI, which has no network."""
    for document in DOCUMENTS:
        assert re.findall(r"https?://(?!localhost|127\.)\S+", document.read_text()) == [], document


@EACH
def test_files_that_are_named_exist(document: Path) -> None:
    for name in PATH.findall("\n".join(line for _, line in prose(document))):
        places = [ROOT / name, PACKAGE / name, ROOT / "benchmarks" / "results" / name]
        assert any(path.exists() for path in places), f"{document.name} names {name}"


@EACH
def test_no_line_of_prose_is_long(document: Path) -> None:
    assert [number for number, line in prose(document) if len(line) > 120] == []


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 130
    assert max(map(len, lines)) <= 100


#: Documents whose snippets are programs, each from the first to the last of its blocks.
PROGRAMS = {"README.md": False, "calls.md": True}
#: What cannot be run without a network, or without a GPU.
ELSEWHERE = re.compile(r"^pip install|^print\(tlx.benchmark\(", re.MULTILINE)


def blocks(document: Path, language: str) -> list[str]:
    """The texts between fences of a language."""
    _, *parts = re.split(r"^```", document.read_text(), flags=re.MULTILINE)
    inside = [part.partition("\n") for part in parts[::2]]
    return [text for name, _, text in inside if name == language]


def snippets(document: Path) -> list[str]:
    """The programs of a document: its blocks, or all of them as one."""
    found = [one for one in blocks(document, "python") if not ELSEWHERE.match(one)]
    return ["\n".join(found)] if PROGRAMS[document.name] else found


def run(folder: Path, *command: object) -> str:
    environment = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        "TVM_LAYOUT_EXT_CACHE": str(folder / "cache"),
        "PATH": os.defpath,
    }
    code, told, complained = ran([*map(str, command)], folder, environment)
    assert code == 0, complained
    assert "Traceback" not in complained
    return told


@pytest.mark.parametrize(
    ("document", "at"),
    [(d, at) for d in DOCUMENTS if d.name in PROGRAMS for at in range(len(snippets(d)))],
    ids=lambda one: getattr(one, "name", str(one)),
)
def test_snippets_run_as_written(document: Path, at: int, tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(snippets(document)[at])
    told = run(tmp_path, "snippet.py")
    if "tlx.explain(s" in snippets(document)[at]:
        assert "Bank conflicts in the blocks run: 0." in told


def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    lines = "".join(blocks(ROOT / "README.md", "")).splitlines()
    commands = [line.partition("  #")[0] for line in lines if not ELSEWHERE.match(line)]
    assert len(commands) >= 3
    for command in commands:
        name, *words = command.split()
        assert name == "tvm-layout"
        assert run(tmp_path, "-m", "tvm_layout_ext", *words)
    assert (tmp_path / "report.html").exists()


def test_every_operator_and_command_is_documented() -> None:
    told = "".join(document.read_text() for document in DOCUMENTS)
    commands = [path.stem for path in (PACKAGE / "cli").glob("*.py")]
    helpers = {"__init__", "app", "codes", "shared"}
    operators = [path.stem for path in (ROOT / "schedules").glob("[a-z]*.py")]
    for name in [*(c for c in commands if c not in helpers), *operators]:
        assert f"`{name}" in told, f"no document names {name}"
