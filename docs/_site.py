"""Writes the pages of the documentation's site to ``build/site_pages``; ``make docs`` builds it.

The pages of this folder are taken as they are; added are the README, the tutorials with what they
print, every message, and a reference of every public name from its docstring.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path

import tvm_layout_ext as tlx
from benchmarks import suites
from docs import _messages
from tvm_layout_ext.schedule.install import PRIMITIVES

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build" / "site_pages"
_BREAK = "\n" + "#" * 70 + "\n"
#: A link's text and target.
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def pages(run: Callable[[Path], str]) -> dict[str, str]:
    """Every page of the site by its name; ``run`` gives what a tutorial prints."""
    docs = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
    scripts = sorted((ROOT / "tutorials").glob("*.py"))
    made = {
        "index.md": (ROOT / "README.md").read_text(),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(),
        **docs,
        **{f"{path.stem}.md": tutorial(path.read_text(), run(path)) for path in scripts},
        "tutorials.md": _list_of_tutorials(scripts),
        "reference.md": reference(),
        "messages.md": _messages.page(),
    }
    made["benchmarks.md"] = benchmarks()
    linked = {name: _relinked(text, set(made)) for name, text in made.items()}
    return linked | {
        **{path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.js"))},
        **{f"benchmark_{name}.svg": _drawn(name) for name in suites.SUITES},
        **{f"{path.stem}.ipynb": notebook(path.read_text()) for path in scripts},
    }


def _relinked(text: str, names: set[str]) -> str:
    """Let links go to the site's pages; those to files that it has not are only named."""

    def change(link: re.Match[str]) -> str:
        told, target = link[1], link[2]
        path, _, anchor = target.partition("#")
        if "://" in target or not path:
            return link[0]
        name = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}.get(Path(path).name)
        name = name or Path(path).with_suffix(".md").name
        is_page = Path(path).suffix in (".md", ".py") and name in names
        return f"[{told}]({name}{'#' + anchor if anchor else ''})" if is_page else told

    parts = re.split(r"(```.*?```)", text, flags=re.DOTALL)
    return "".join(p if p.startswith("```") else _LINK.sub(change, p) for p in parts)


def tutorial(text: str, printed: str) -> str:
    """A script of the gallery as a page: its prose, its code, and what it prints."""
    made = [part if kind == "markdown" else _code(part) for kind, part in cells(text)]
    return "\n\n".join([*made, f"## What it prints\n\n```text\n{printed.strip()}\n```"])


def notebook(text: str) -> str:
    """A script of the gallery as a Jupyter notebook, without outputs."""
    made = [
        {"cell_type": kind, "id": str(n), "metadata": {}, "source": part.splitlines(keepends=True)}
        | ({"execution_count": None, "outputs": []} if kind == "code" else {})
        for n, (kind, part) in enumerate(cells(text))
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    found = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(found, indent=1) + "\n"


def cells(text: str) -> list[tuple[str, str]]:
    """Prose and code of a script in their order, as ``markdown`` and ``code``."""
    head, *parts = text.split(_BREAK)
    _, docstring, code = head.split('"""', 2)
    made = [("markdown", re.sub(r"^\.\. _.*\n", "", docstring.strip())), ("code", code)]
    for part in parts:
        lines = part.split("\n")
        end = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
        told = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[:end])
        made += [("markdown", told), ("code", "\n".join(lines[end:]))]
    plain = [(kind, _prose(part) if kind == "markdown" else part.strip()) for kind, part in made]
    return [(kind, part) for kind, part in plain if part]


def _prose(text: str) -> str:
    return re.sub(r":\w+:", "", text.replace("``", "`")).strip()


def _list_of_tutorials(scripts: list[Path]) -> str:
    lines = []
    for path in scripts:
        title = re.search(r"^(.+)\n=+$", path.read_text(), re.MULTILINE)
        name = title[1] if title else path.stem
        book = f'<a href="{path.stem}.ipynb" download>notebook</a>'
        lines.append(f"* [{name}]({path.stem}.md), {book}")
    return "\n".join(["# Tutorials", "", "Each is a script, with what it prints.", "", *lines])


def benchmarks() -> str:
    """A table and a picture of each suite's committed results."""
    lines = [
        "# Benchmarks",
        "",
        "Microseconds on an H200, from the committed results. `tvm-layout bench --suite NAME`",
        "runs a suite again. A dash is a peer that was not measured. [Performance](performance.md)",
        "tells how, and what is slow.",
    ]
    for name, suite in suites.SUITES.items():
        heads, *cells = suites.table(_rows(name))
        table = [heads, ["---"] + ["--:"] * (len(heads) - 1), *cells]
        told = f"{suite.about} (`benchmarks/results/{suite.file}`)"
        lines += ["", f"## {name}", "", told, "", *(f"| {' | '.join(row)} |" for row in table)]
        lines += ["", f'<img src="benchmark_{name}.svg" alt="{name}, times over the fastest">']
    return "\n".join(lines)


def _rows(name: str) -> list[suites.Row]:
    suite = suites.SUITES[name]
    return suites.read(suite, suites.RESULTS / suite.file)


def _drawn(name: str) -> str:
    return suites.chart(name, _rows(name)).svg()


def reference() -> str:
    """Directives for every public name, and for every primitive of ``tvm.s_tir.Schedule``."""
    names = {name: getattr(tlx, name) for name in dir(tlx) if not name.startswith("_")}
    modules = {name: value for name, value in names.items() if inspect.ismodule(value)}
    shown = examples()
    lines = ["# Reference", "", "Imported as `import tvm_layout_ext as tlx`.", ""]
    lines += ["Examples of this page begin so:", "", _code(shown[""]), ""]
    for name, value in sorted(names.items()):
        # A package that is called is documented as its function.
        one = type(value).__call__ if name in modules and callable(value) else value
        if inspect.ismodule(one):
            continue
        # A decorator may have made a class of another name.
        path = name if "<locals>" in one.__qualname__ else one.__qualname__
        lines += _directive(f"tlx.{name}", f"{one.__module__}.{path}", shown)
    lines += ["# Primitives", "", "Methods of `tvm.s_tir.Schedule`, which is `sch`.", ""]
    for name, value in sorted(PRIMITIVES.items()):
        lines += _directive(f"sch.{name}", f"{value.__module__}.{value.__qualname__}", shown)
    lines += ["# Modules", ""]
    lines += [
        f"* `tlx.{name}`: {(inspect.getdoc(value) or '').splitlines()[0]}"
        for name, value in sorted(modules.items())
    ]
    return "\n".join(lines)


def _directive(heading: str, path: str, shown: dict[str, str]) -> list[str]:
    example = ["Example:", "", _code(shown[heading]), ""] if heading in shown else []
    return [f"::: {path}", "    options:", f"      heading: {heading}", "", *example]


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def examples() -> dict[str, str]:
    """The parts of ``_examples.py`` by the names that they are of; that of no name comes first."""
    _, *parts = re.split(r"(?m)^# %%(.*)\n", (ROOT / "docs" / "_examples.py").read_text())
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {name.strip(): text.strip() for names, text in pairs for name in names.split(",")}


def run(path: Path) -> str:
    """What a tutorial prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()


if __name__ == "__main__":
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    for page, content in pages(run).items():
        (OUT / page).write_text(content)
