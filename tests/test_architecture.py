"""The shape of the package: imports without cycles, small folders, short functions, one name each.

What breaks a rule today stands in a list with its reason; a list that has become too long fails.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tvm_layout_ext"
MOST_FILES, MOST_LINES = 20, 60

#: Folders whose modules still import each other, with the reason.
CYCLES: dict[str, str] = {}
#: Folders with more files, with the reason.
LARGE = {"schedules": "a module an operator"}
#: Class names that two files have, with the reason.
SAME_NAMES: dict[str, str] = {}
#: Functions that are longer, with the reason.
LONG: dict[str, str] = {}


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package, by its dotted name."""
    found = {}
    # rglob follows no links, and schedules is one.
    for path in [*PACKAGE.rglob("*.py"), *(PACKAGE / "schedules").glob("*.py")]:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name] = ast.parse(path.read_text(), str(path))
    return found


@cache
def nodes() -> dict[str, list[ast.AST]]:
    """What every module is made of that the rules ask of."""
    kinds = ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef
    return {
        name: [node for node in ast.walk(tree) if isinstance(node, kinds)]
        for name, tree in modules().items()
    }


def imports(name: str) -> set[str]:
    """Modules of the package that one imports anywhere in it: in functions, for types, too."""
    known = modules()
    found = set()
    for node in nodes()[name]:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".")[: -node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            inside = {f"{base}.{alias.name}" for alias in node.names}
            found |= inside
            if any(one not in known and f"{one}.__init__" not in known for one in inside):
                found.add(base)
    found |= {f"{one}.__init__" for one in found}
    return {other for other in found if other in known and other != name}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach one another."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        left = [start]
        while left:
            fresh = graph[left.pop()] - seen
            seen |= fresh
            left.extend(fresh)
        reached[start] = seen
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return [list(group) for group in sorted(groups)]


def test_no_cycle_of_modules() -> None:
    found = cycles({name: imports(name) for name in modules()})
    assert [g for g in found if not any(all(m.startswith(k) for m in g) for k in CYCLES)] == []
    assert len(found) == len(CYCLES), "a cycle is gone: take its folder off the list"


def test_cycles_finds_a_cycle() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}}) == [["b", "c"], ["d"]]


def test_no_folder_has_too_many_files() -> None:
    folders = [p for p in PACKAGE.rglob("*") if p.is_dir()]
    counts = {str(p.relative_to(PACKAGE)): len(list(p.glob("*.py"))) for p in folders}
    large = {folder: n for folder, n in counts.items() if n > MOST_FILES}
    assert {folder: n for folder, n in large.items() if folder not in LARGE} == {}
    assert set(LARGE) <= set(large), "a folder is small now: take it off the list"


def test_a_class_name_stands_in_one_file() -> None:
    files = defaultdict(list)
    for name, inside in nodes().items():
        for node in inside:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(name)
    twice = {name: where for name, where in files.items() if len(where) > 1}
    assert {n: w for n, w in twice.items() if n not in SAME_NAMES} == {}
    assert set(SAME_NAMES) <= set(twice), "a name is single now: take it off the list"


def test_no_function_is_too_long() -> None:
    long = {
        f"{name}.{node.name}": lines
        for name, inside in nodes().items()
        for node in inside
        if isinstance(node, ast.FunctionDef) and (lines := body_lines(node)) > MOST_LINES
    }
    assert {name: lines for name, lines in long.items() if name not in LONG} == {}
    assert set(LONG) <= set(long), "a function is short now: take it off the list"


def body_lines(function: ast.FunctionDef) -> int:
    """Lines of a function without its docstring."""
    text = ast.get_docstring(function, clean=False)
    first = function.body[0]
    spoken = 0 if text is None else (first.end_lineno or 0) - first.lineno + 1
    return (function.end_lineno or 0) - function.lineno + 1 - spoken


def test_the_simulated_gpu_loads_no_pass_and_no_schedule() -> None:
    code = f"""
import sys, types
bare = types.ModuleType("tvm_layout_ext")
bare.__path__ = [{str(PACKAGE)!r}]
sys.modules["tvm_layout_ext"] = bare
import tvm_layout_ext.simulate
print({{name.split(".")[1] for name in sys.modules if name.startswith("tvm_layout_ext.")}})
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    allowed = {"simulate", "gpu", "ir", "errors", "signatures", "text", "layout", "_compat"}
    assert ast.literal_eval(out.stdout) <= allowed
