"""Every message of the package, read from the places that raise or log one; a page of the site."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: What stands for a name or a number that only a run knows.
GAP = "…"
#: Exceptions, by what their names end in or as they are called.
_ERROR = re.compile(r"(Error|Exit|NotModelled|Uncertain)$")
#: Fewer words than this are a part of another sentence.
_LEAST_WORDS = 2
_HEAD = """# Every message

Names and numbers of a run are written as `…`: search for the words beside them. A message says what
is wrong and, where there is a choice, what would be legal. What to do by its class:

| class | what to do |
|---|---|
| `ScheduleError` | change the call that it names; nothing was scheduled by it |
| `LayoutError` | change a size, an order or an alignment of the layout |
| `TargetError` | smaller tiles, fewer stages; or name your GPU by `cuda_target` |
| `RecordError` | name another log; the lines that it names can be deleted |
| `UnfitError`, `Uncertain` | a configuration or mapping is left out; others are tried |
| `NotModelled` | the simulated GPU does not know it; measure on a GPU |
| `SimulationError` | the kernel does what a GPU would punish; mend the access that it names |
| `WrongResultError`, `PtxasError`, `Trial...` | a trial failed, and others are tried |
| `NoServerError`, `ServerLostError` | look at the RPC server, its address and its token |
| warning | nothing fails; what it names was left out or done otherwise |

[Troubleshooting](troubleshooting.md) says more of those that are met most.
"""


def gathered() -> dict[Path, list[tuple[str, str]]]:
    """Class and text of the messages of each file."""
    files = [*(ROOT / "tvm_layout_ext").rglob("*.py"), *(ROOT / "schedules").glob("*.py")]
    found = {path: list(_in(ast.parse(path.read_text()))) for path in sorted(files)}
    return {path: list(dict.fromkeys(said)) for path, said in found.items() if said}


def _in(tree: ast.AST) -> Iterator[tuple[str, str]]:
    raised = {id(node.exc) for node in ast.walk(tree) if isinstance(node, ast.Raise)}
    named = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        is_warning = name in ("warning", "warn")
        if is_warning or _ERROR.search(name) or id(node) in raised:
            # Functions that make an error are not told by a class's name.
            kind = "warning" if is_warning else name if _ERROR.search(name) else ""
            for text in dict.fromkeys(part for one in node.args for part in _texts(one, named)):
                if len(re.findall(r"[A-Za-z]{2,}", text)) >= _LEAST_WORDS:
                    yield kind, text


def _texts(node: ast.AST, named: dict[str, ast.expr]) -> Iterator[str]:
    """What an expression may say, with gaps."""
    match node:
        case ast.Constant(value=str(text)):
            yield re.sub(r"%[sd]", GAP, text)
        case ast.JoinedStr(values=parts):
            yield "".join(GAP if isinstance(p, ast.FormattedValue) else p.value for p in parts)  # type: ignore[attr-defined]
            inner = [p.value for p in parts if isinstance(p, ast.FormattedValue)]
            yield from (text for one in inner for text in _texts(one, named))
        case ast.IfExp(body=one, orelse=other):
            yield from _texts(one, named)
            yield from _texts(other, named)
        case ast.BinOp(left=one, op=ast.Add(), right=other):
            lefts, rights = list(_texts(one, named)) or [GAP], list(_texts(other, named)) or [GAP]
            yield from (left + right for left in lefts for right in rights)
        case ast.Name(id=name) if name in named:
            yield from _texts(named[name], {})
        case _:
            parts = ast.iter_child_nodes(node)
            yield from (text for one in parts for text in _texts(one, {}))


def page() -> str:
    """The messages by the folder and the file that says them."""
    lines, folder = [_HEAD], ""
    for path, said in gathered().items():
        parts = path.relative_to(ROOT).parts
        if folder != (folder := parts[1] if len(parts) > 2 else parts[0]):
            lines += [f"## {folder}", ""]
        docstring = ast.get_docstring(ast.parse(path.read_text())) or path.stem
        title = docstring.partition("\n")[0].replace("``", "`").rstrip(".")
        lines += [f"### {title}", "", *(f"* {_line(*one)}" for one in said), ""]
    return "\n".join(lines)


def _line(kind: str, text: str) -> str:
    text = " ".join(text.split())
    shown = f"`` {text} ``" if "`" in text else f"`{text}`"
    return f"{kind}: {shown}" if kind else shown
