"""Wrong input of every command is one sentence and a documented exit code, never a traceback."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.tune.helpers import make_record
from tvm_layout_ext._compat import has_gpu
from tvm_layout_ext.cli import app
from tvm_layout_ext.tune.records.log import Log

HUGE = "99999999999999999999"
#: What typer itself refuses, it frames; what is refused here is one line.
FRAMES = ("Usage:", "╭", "│", "╰", "Try ")

TUNE = "tune transpose --runner simulate --trials 1 --log LOG "
SHAPES = [
    f"{HUGE} 4", f"4 {HUGE}", f"{HUGE} {HUGE}", "0 4", "4 0", "-1 4", "4 -4", "1.5 4", "1e3 4",
    "x", "4x", "x4", "4,,x", "a b", "4", "4 4 4", "4 4 4 4 4 4 4 4 4", "--shape", "4;4", "0x10 4",
    "4 4.", "nan 4", "inf 4", "'' 4", "[4] 4", "4e999 4", "4294967296 4294967296", "+ 4", "- 4",
]  # fmt: skip
OPTIONS = [
    "--dtype float33", "--dtype float", "--dtype FLOAT32", "--dtype int4",
    "--dtype handle", "--dtype float32x4", "--dtype bool", "--dtype 7", "--dtype void",
    "--trials 0", "--trials -1", "--trials x", "--trials 1.5", "--trials ''",
    "--seed -1", "--seed x", "--seed 1e3",
    "--strategy x", "--strategy ''", "--runner x", "--runner ''", "--runner rpc",
    "--runner rpc --tracker x", "--runner rpc --tracker h:p --key k", "--runner rpc --tracker :1",
    "--runner rpc --tracker h:1", "--runner rpc --tracker h:1 --key a:b", "--tracker h:1",
    "--runner cuda", "--runner rpc:h", "--runner rpc:h:1:k:x", "--arch sm_99x", "--arch x",
    "--arch 90", "--nosuch 1",
]  # fmt: skip
OPERATORS = ["", "transposee", "x", "../gemm", "TRANSPOSE", "gemm,", "_generic", "transpose.py"]
LOGS = ["NOWHERE", "FILE", "BINARY", "EMPTY", "/dev/null", "''", "/proc/1/mem", "BAD"]
LAYOUTS = [
    "", "Blocked", "Blocked(", "Blocked()", "Blocked(1)", "Blocked([1])", "Foo([1])",
    "Blokced([1])",
    "Blocked([3], [32], [1], [0])", "Blocked([1], [31], [1], [0])", "Blocked([1], [32], [1], [1])",
    "Blocked([1], [32], [1], [0], [0])", "Blocked([1, 4], [8, 4], [4, 1])",
    f"Blocked([{HUGE}], [32], [1], [0])", "Blocked([-1], [32], [1], [0])",
    "Blocked([1.5], [32], [1], [0])", "Blocked(['a'], [32], [1], [0])", "Blocked(x=1)",
    "Blocked([1], [32], [1], [0], x=1)", "Blocked([], [], [], [])", "[1]", "1", "None",
    "Linear({})",
    "Linear({register: [[1]]}, {dim0: 3})", "SwizzledShared(0, 1, 1, [0])",
    "SwizzledShared(3, 1, 1, [1, 0])", "__import__('os').system('x')", "Blocked(*[1])", "(" * 500,
    "Blocked(" * 300, "[" * 3000, "9" * 5000, "\x00", "é", "Slice(0, Blocked([1], [32], [1], [0]))",
    "Slice(9, Blocked([1, 4], [8, 4], [4, 1], [1, 0]))", "lambda: 1", "a.b(1)", "Blocked([1],)",
]  # fmt: skip
FILES = {
    "empty.py": "", "syntax.py": "def f(:", "raises.py": "1 / 0", "exits.py": "raise SystemExit(3)",
    "interrupts.py": "x = 1\nraise RuntimeError('two\\nlines')", "nothing.py": "x = 1",
    "imports.py": "import no_such_module", "deep.py": "f = lambda n: f(n + 1)\nf(0)",
    "script.py": "@T.prim_func\ndef f(:", "text.txt": "hello", "null.py": "\x00",
    "base.py": "class Odd(BaseException): ...\nraise Odd",
    "silent.py": "class Odd(Exception):\n    def __str__(self): return 1 / 0\nraise Odd",
    "proxy.py": "class Odd:\n    __class__ = property(lambda self: 1 / 0)\nx = Odd()",
    "type.py": "# from tvm.script import tirx as T\n@T.prim_func\n"
    "def main(A: T.Buffer((8,), 'float33')):\n    T.evaluate(0)\n",
    "noargs.py": "from tvm_layout_ext import te\nA = te.placeholder((8,), name='A')\n"
    "B = te.compute((8,), lambda i: A[i], name='B')\ns = te.create_schedule(B.op)\n",
    "badargs.py": "from tvm_layout_ext import te\nA = te.placeholder((8,), name='A')\n"
    "B = te.compute((8,), lambda i: A[i], name='B')\ns = te.create_schedule(B.op)\nargs = [1, B]\n",
    "unbound.py": "from tvm_layout_ext import te\nA = te.placeholder((8,), name='A')\n"
    "B = te.compute((8,), lambda i: A[i], name='B')\ns = te.create_schedule(B.op)\nargs = [A, B]\n",
    "symbolic.py": "from tvm_layout_ext import te\nn = te.var('n')\n"
    "A = te.placeholder((n, 8), name='A')\nB = te.compute((n, 8), lambda i, j: A[i, j], name='B')\n"
    "s = te.create_schedule(B.op)\ns[B].bind(B.op.axis[0], te.thread_axis('blockIdx.x'))\n"
    "s[B].bind(B.op.axis[1], te.thread_axis('threadIdx.x'))\nargs = [A, B]\n",
    "large.py": "from tvm_layout_ext import te\nn = 1 << 30\nA = te.placeholder((n, n), name='A')\n"
    "B = te.compute((n, n), lambda i, j: A[i, j], name='B')\ns = te.create_schedule(B.op)\n"
    "s[B].bind(B.op.axis[0], te.thread_axis('blockIdx.x'))\n"
    "s[B].bind(B.op.axis[1], te.thread_axis('threadIdx.x'))\nargs = [A, B]\n",
}  # fmt: skip
ON_FILES = [
    "", "--name x", "--name ''", "--size x", "--size n", "--size n=x", "--size n=-1", "--size n=0",
    f"--size n={HUGE}", "--size n=2147483647", "--size =1", "--blocks -1",
    "--blocks x", "--arch sm_00",
]  # fmt: skip
OTHERS = [
    "", "nosuch", "explian x.py", "tune", "layout", "explain", "lint", "simulate", "best", "report",
    "compare EMPTY", "compare EMPTY EMPTY", "report EMPTY -o x.pdf",
    "report EMPTY -o /nowhere/x.html",
    "replay EMPTY --id zzz", "export EMPTY -o x", "export EMPTY -o /nowhere/x --id 1", "--nosuch",
    f"report FULL --no-kernels -o {'x' * 300}.html", "export FULL -o é", "lint '\x00'",
    "explain '\x00'", "explain /dev/zero", "best /dev/zero", f"best {'x' * 300}", "lint nosuch",
    "lint no.such.module", f"lint {'x' * 300}", "lint empty.py --format x", "lint .", "explain .",
    "report FULL --png \udcff",
    "explain unbound.py --pipeline -o x.png", "explain unbound.py -o x.svg",
    "explain unbound.py --picture x.png", "lint unbound.py --max-sectors-ratio 0",
    "lint unbound.py --min-vector-bytes 3", "lint unbound.py --hazards -1", "operators x",
    *(f"tune {name} --shape 1 3 16 16 64 64 --runner simulate --log LOG"
      for name in ("attention", "ragged_attention")),
    "layout 'Blocked([1], [32], [1], [0])' --shape 3", "check EMPTY", "bench EMPTY",
    "layout 'Blocked([1], [32], [1], [0])' --shape 32 --view x",
    "layout 'Blocked([1], [32], [1], [0])' --shape 32 --bits 7",
    f"layout 'Blocked([1], [32], [1], [0])' --shape {HUGE}",
    "layout 'Blocked([1], [32], [1], [0])' --shape 32 -o x.bmp",
    "layout 'Blocked([1], [32], [1], [0])' --shape 32 -o /nowhere/x.svg",
    "layout 'Blocked([1], [32], [1], [0])' --shape 1048576",
    "layout 'Blocked([1], [32], [1], [0])' --shape 0",
]  # fmt: skip

TABLE = [
    *(f"{TUNE}--shape {shape}" for shape in SHAPES),
    *(f"{TUNE}--shape 4 4 {option}" for option in OPTIONS),
    *(f"tune {name or repr('')} --shape 4 4 --runner simulate --log LOG" for name in OPERATORS),
    *(f"{command} {log}" for command in ("best", "replay", "check", "report") for log in LOGS),
    *(f"{command} {file}" for command in ("explain", "simulate", "lint") for file in FILES),
    *(f"{command} symbolic.py {words}" for command in ("explain", "lint") for words in ON_FILES),
    *OTHERS,
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the wrong files are, and commands run."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "file").write_text("no log\n")
    (tmp_path / "empty").mkdir()
    Log(tmp_path / "full").prepare()
    Log(tmp_path / "full").append(make_record())
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "records.jsonl").write_text('{"id": 1}\n[]\nnull\n{"schema_version": 9}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


PATHS = {"NOWHERE": "nowhere", "FILE": "file", "BINARY": "binary", "EMPTY": "empty", "BAD": "bad",
         "LOG": "log", "FULL": "full"}  # fmt: skip


def words_of(line: str) -> list[str]:
    """Words of a shell line; names in capitals are files."""
    return [PATHS.get(word, word) for word in shlex.split(line)]


def check(words: list[str]) -> str:
    """Run a command that cannot work; what it says."""
    ran = CliRunner().invoke(app, words)
    unexpected = ran.exception if not isinstance(ran.exception, SystemExit) else None
    assert unexpected is None, f"{words} raises {unexpected!r}"
    assert ran.exit_code in (1, 2), f"{words} ends with {ran.exit_code}: {ran.output}"
    assert "Traceback" not in ran.output
    said = [line for line in ran.stderr.splitlines() if line and not line.startswith(FRAMES)]
    errors = [line for line in said if not line.startswith(("Warning: ", "simulate ", "Reading "))]
    assert len(errors) <= 1, f"{words} says {errors}"
    assert all(len(line) < 600 for line in errors), errors
    unforeseen = [line for line in errors if re.match(r"Error: [A-Z]\w*(Error|Exception):", line)]
    assert not unforeseen, f"{words} says {unforeseen}"
    return ran.output


@pytest.mark.parametrize("line", TABLE)
@pytest.mark.usefixtures("folder")
def test_a_wrong_command_line_is_one_sentence(line: str) -> None:
    if line.endswith("--runner cuda") and has_gpu():
        pytest.skip("right beside a GPU")
    check(words_of(line))


@pytest.mark.parametrize("error", [RuntimeError, AttributeError, MemoryError, AssertionError])
def test_an_error_that_nobody_foresaw_is_one_sentence(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: str) -> None:
        raise error("two\nlines")

    monkeypatch.setattr("tvm_layout_ext.layout.parse", fails)
    ran = CliRunner().invoke(app, ["layout", "x"])
    assert (ran.exit_code, ran.stderr) == (2, f"Error: {error.__name__}: two\n")


@pytest.mark.parametrize(
    ("line", "named"),
    [("tune transpose --shpae 8 8", "--shape"), ("explain x.py --shape 8", "--size"),
     ("best logs --shape 8", "--explain")],
)  # fmt: skip
def test_an_option_that_is_none_is_answered_by_those_that_are(line: str, named: str) -> None:
    said = CliRunner().invoke(app, line.split()).stderr
    assert named in said
    assert "--help" not in said.partition("No such option")[2]


@pytest.mark.usefixtures("folder")
def test_a_file_is_run_once() -> None:
    Path("says.py").write_text("import sys\nsys.stderr.write('run\\n')\n")
    assert CliRunner().invoke(app, ["lint", "says.py"]).stderr.count("run\n") == 1


@pytest.mark.usefixtures("folder")
def test_a_short_error_of_a_file_is_told_whole() -> None:
    """Of assert_kernel's there was but the last line, a statement of the kernel."""
    text = r"raise AssertionError('Rules are broken.\nconflicts: 3\n  A = B')"
    Path("asserts.py").write_text(text)
    said = CliRunner().invoke(app, ["lint", "asserts.py"]).stderr
    assert "failed with AssertionError: Rules are broken. conflicts: 3 A = B." in said


@pytest.mark.parametrize("text", LAYOUTS)
def test_a_wrong_layout_is_one_sentence(text: str) -> None:
    check(["layout", text, "--shape", "32"])


@given(text=st.text(max_size=60))
def test_any_text_for_a_layout_is_one_sentence(text: str) -> None:
    check(["layout", "--shape", "16x16", "--", text])


@given(words=st.lists(st.text(alphabet="-x0123456789.,eE+ ", min_size=1, max_size=8), max_size=4))
def test_any_shape_is_one_sentence_or_a_layout(words: list[str]) -> None:
    ran = CliRunner().invoke(
        app, ["layout", "Blocked([1], [32], [1], [0])", "--shape=" + " ".join(words)]
    )
    assert ran.exception is None or isinstance(ran.exception, SystemExit), (words, ran.exception)
    assert ran.exit_code in (0, 2)
