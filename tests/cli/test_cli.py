"""The command line: every command end to end in the simulator, and every refusal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tvm_layout_ext as tlx
from tests.tune.helpers import make_record
from tvm_layout_ext._interrupt import is_command_line
from tvm_layout_ext.cli import app
from tvm_layout_ext.cli.app import join_shapes
from tvm_layout_ext.layout import Layout, parse
from tvm_layout_ext.tune.records.log import Log
from tvm_layout_ext.tune.space.operator import known_operators

TUNE = ["tune", "transpose", "--shape", "64", "64", "--trials", "3", "--runner", "simulate"]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


def invoke(*words: object) -> Ran:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    log = tmp_path_factory.mktemp("tuned") / "log"
    return log, invoke(*TUNE, "--log", log)


def test_tune_prints_trials_verdict_and_replay_command(tuned: tuple[Path, Ran]) -> None:
    log, ran = tuned
    assert ran.code == 0, ran.err
    assert "trial 3 of 3" not in ran.out  # quiet: this is no terminal
    assert "transpose 64x64 float32 on simulated GPU" in ran.out
    assert "A model, not a time." in ran.out
    assert "Verified against NumPy on transpose 64x64 float32." in ran.out
    assert "Winner against" in ran.out
    assert len(Log(log).read().records) == 3


@pytest.mark.parametrize("command", ["replay", "compare", "check", "bench"])
def test_what_reads_a_log_writes_json(tuned: tuple[Path, Ran], command: str) -> None:
    log, _ = tuned
    words = [log] if command == "compare" else ["--runner", "simulate"]
    ran = invoke(command, log, *words, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    (one,) = found["pairs"] if command == "compare" else found
    record = one["before"] if command == "compare" else one["record"]
    best = min(Log(log).read().records, key=lambda each: each.score or float("inf"))
    assert record == best.to_json()


def test_tune_writes_json_alone(tmp_path: Path) -> None:
    ran = invoke(*TUNE, "--log", tmp_path / "log", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert [one["trial"] for one in found["trials"]] == [0, 1, 2]
    assert found["best"] in found["trials"]
    assert not found["interrupted"]


def test_tune_without_a_type_takes_one_that_the_operator_has(tmp_path: Path) -> None:
    small = ["--shape", "16", "64", "4", "--trials", "1", "--runner", "simulate"]
    ran = invoke("tune", "gather_rows", *small, "--log", tmp_path)
    assert ran.code == 0, ran.err
    assert "Verified against NumPy on gather_rows 16x64x4 int32." in ran.out


def test_printed_replay_command_gives_the_same_counters(tuned: tuple[Path, Ran]) -> None:
    command = tuned[1].out.strip().splitlines()[-1].split()
    assert command[:3] == ["python", "-m", "tvm_layout_ext"]
    ran = invoke(*command[3:])
    assert ran.code == 0, ran.err
    assert "counters: the same as recorded" in ran.out
    assert "right on transpose 64x64 float32" in ran.out
    best = invoke("replay", tuned[0])
    assert (best.code, best.out.count("right on")) == (0, 1)


def test_tune_again_takes_all_from_the_log(tuned: tuple[Path, Ran]) -> None:
    ran = invoke(*TUNE, "--log", tuned[0])
    assert ran.code == 0
    assert "3 of them from the log" in " ".join(ran.out.split())
    assert len(Log(tuned[0]).read().records) == 3


def test_best_prints_a_record_and_explains_it(tuned: tuple[Path, Ran]) -> None:
    ran = invoke("best", tuned[0], "--explain")
    assert ran.code == 0
    assert "transpose 64x64 float32" in ran.out
    assert "sectors/request" in ran.out
    assert "A_shared" in ran.out


def test_real_process_runs_and_exits_with_the_documented_code(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tvm_layout_ext"]
    bad = subprocess.run(
        [*command, "tune", "softmox", "--shape", "8", "8", "--log", tmp_path / "log"],
        cwd=root, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert bad.returncode == 2
    assert bad.stderr.startswith("Error: Unknown operator 'softmox'; known are ")
    assert "Traceback" not in bad.stderr
    assert not (tmp_path / "log").exists()


def test_interrupt_keeps_the_records_and_exits_with_130(tmp_path: Path) -> None:
    root, log = Path(__file__).parents[2], tmp_path / "log" / "trials.jsonl"
    # What ranks candidates would take most of the time.
    words = ["tune", "transpose", "--shape", "64", "64", "--trials", "900", "--strategy", "replay"]
    words += ["--runner", "simulate", "--log"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tvm_layout_ext", *words, log.parent],
        cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (log.exists() and log.read_text().count("\n") > 2):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    reading = Log(log.parent).read()
    assert len(reading.records) > 2
    assert reading.corrupt == 0
    best = min(reading.records, key=lambda record: record.score or float("inf"))
    assert f"Interrupted; best so far: {best.id}." in out


def test_corrupt_and_foreign_lines_are_counted_once(tmp_path: Path) -> None:
    Log(tmp_path).append(make_record())
    foreign = json.dumps(make_record().to_json() | {"schema_version": 9})
    with (tmp_path / "trials.jsonl").open("a") as file:
        file.write(f"{{broken\n{foreign}\n")
    ran = invoke("best", tmp_path)
    assert ran.code == 0
    assert ran.err == (
        "Warning: Skipped 1 corrupt line and 1 record of a schema version other than 1.\n"
    )


def test_log_without_a_trial_that_worked_has_no_best(tmp_path: Path) -> None:
    Log(tmp_path).append(make_record(status="error", error_class="X", error_text="y"))
    assert invoke("best", tmp_path).code == 1
    assert invoke("replay", tmp_path).code == 2


def test_replay_of_an_unknown_id_or_of_other_knobs_is_refused(tmp_path: Path) -> None:
    Log(tmp_path).append(make_record())
    unknown = invoke("replay", tmp_path, "--id", "zz")
    assert (unknown.code, "no record has an id starting with 'zz'" in unknown.err) == (2, True)
    stale = invoke("replay", tmp_path, "--id", make_record().id[:6])
    assert (stale.code, "cannot be replayed: transpose has the knobs" in stale.err) == (2, True)


def test_tune_that_cannot_resume_another_writers_lines_still_runs(tmp_path: Path) -> None:
    (tmp_path / "trials.jsonl").write_text("{broken\n")
    ran = invoke(*TUNE[:-3], "1", "--runner", "simulate", "--log", tmp_path)
    assert (ran.code, ran.err) == (0, "Warning: Skipped 1 corrupt line.\n")


@pytest.mark.parametrize(
    ("given", "joined"),
    [
        (["--shape", "4", "5", "--dtype", "x"], ["--shape=4 5", "--dtype", "x"]),
        (["--shape", "4x5", "name"], ["--shape=4x5", "name"]),
        (["--shape=4", "5", "6"], ["--shape=4 5 6"]),
        (["--shape", "-4", "5"], ["--shape=-4 5"]),
        (["--trials", "4", "5"], ["--trials", "4", "5"]),
        (["name", "--shape", "--dtype", "x"], ["name", "--shape", "--dtype", "x"]),
    ],
)
def test_numbers_after_shape_become_one_word(given: list[str], joined: list[str]) -> None:
    assert join_shapes(given) == joined


def test_help_documents_the_exit_codes() -> None:
    for command in ("tune", "best", "replay", "explain"):
        text = " ".join(invoke(command, "--help").out.split())
        assert "Exit codes: 0 done" in text


_BLOCKED = (
    "BlockedLayout(size_per_thread=[2, 2], threads_per_warp=[8, 4], warps_per_cta=[1, 2], "
    "order=[1, 0])"
)


@pytest.mark.parametrize("view", ["bank", "tensor"])
@pytest.mark.parametrize(("more", "bits"), [([], 16), (["--bits", "32"], 32)])
def test_layout_draws_the_banks_of_the_bits_that_the_layout_has(
    view: str, more: list[str], bits: int
) -> None:
    """Banks were drawn for words whatever the layout, and --bits was lost on other views."""
    words = ["layout", "NVMMAShared(64, 16)", "--shape", "8", "64", "--view", view, *more]
    drawn = CliRunner().invoke(app, words).output
    layout = parse("NVMMAShared(64, 16)")
    assert isinstance(layout, Layout)

    assert drawn == layout.render([8, 64], view=view, element_bits=bits) + "\n"
    assert drawn != layout.render([8, 64], view=view, element_bits=48 - bits) + "\n"


@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_layout_writes_pictures(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"picture.{suffix}"
    words = ["layout", _BLOCKED, "--shape", "16x16", "-o", str(out)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert f"<{suffix}" in out.read_text()


TUNED = ["tune", "transpose", "--shape"]
DRAWN = ["layout", _BLOCKED, "--shape", "16", "16"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tune", "nope", "--shape", "8", "8"], "Unknown operator 'nope'; known are "),
        (["tune", "transpose"], "transpose needs a shape of 2 numbers (M N), not 0."),
        ([*TUNED, "8"], "transpose needs a shape of 2 numbers"),
        ([*TUNED, "-8", "8"], "M of transpose must be at least 1, not -8."),
        ([*TUNED, "8", "eight"], "Got unexpected extra argument"),
        ([*TUNED, "8xeight"], "A shape is made of whole numbers"),
        ([*TUNED, "1.5", "8"], "A shape is made of whole numbers"),
        ([*TUNED, "8", "8", "--dtype", "int4"], "transpose has no dtype int4"),
        ([*TUNED, "8", "8", "--trials", "0"], "The number of trials must be at least 1, not 0"),
        ([*TUNED, "8", "8", "--runner", "gpu"], "Unknown runner 'gpu'"),
        ([*TUNED, "8", "8", "--log", "/dev/null/x"], "Cannot write a log"),
        *(
            ([*words, "/no/log"], "Cannot read a log at /no/log: No such file")
            for words in (["best"], ["replay"], ["check"], ["bench"], ["export", "-o", "k"],
                          ["report"], ["compare", "/no/log"])
        ),
        (["explain", "/no/such/file.py"], "Cannot read /no/such/file.py"),
        (["simulate", "/no/file.py"], "Cannot read /no/file.py"),
        (["explain", "x.py", "--size", "n=many"], "A size is written name=number"),
        (["compare", "EMPTY", "EMPTY"], "holds no record."),
        (["check", "EMPTY"], "so there is no winner to check."),
        (["bench", "EMPTY"], "so there is no winner to run."),
        (["replay", "EMPTY"], "so there is no winner to replay."),
        (["check", "EMPTY", "--tracker", "h:1"], "--tracker and --key go with --runner rpc"),
        (["check", "EMPTY", "--runner", "rpc"], "--runner rpc needs --tracker HOST:PORT"),
        (["report", "EMPTY"], "EMPTY holds no record."),
        (["report", "LOG", "-o", "r.pdf"], "A report is written to a .html file, not to r.pdf."),
        (["report", "LOG", "-o", "/no/r.html"], "Cannot write /no/r.html: there is no folder /no."),
        (["report", "LOG", "-o", "FOLDER.html"], "FOLDER.html: Is a directory."),
        (["report", "LOG", "--png", "/dev/null/x"], "Cannot write plots in /dev/null/x"),
        (["layout", "Blocked("], "is not of the form"),
        (["layout", "Linear({x: [[1], [2]]}, {y: 4})", "--shape", "4"],
         "write DistributedLinear(...)"),
        (["layout", _BLOCKED], "--shape is missing"),
        ([*DRAWN, "--view", "x"], "one of tensor, hardware"),
        ([*DRAWN, "-o", "a.gif"], ".svg or .html file"),
        ([*DRAWN, "-o", "/no/a.svg"], "Cannot write /no/a.svg"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_code_2(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("LOG", "EMPTY"):
        Log(Path(name)).prepare()
    Log(Path("LOG")).append(make_record())
    Path("FOLDER.html").mkdir()
    Path("x.py").write_text("")
    if words[0] == "tune" and "--log" not in words:
        words = [*words, "--log", "NEW"]
    if words[0] == "report":
        words = [*words, "--no-kernels"]
    ran = invoke(*words)
    assert ran.code == 2
    assert message in " ".join(ran.err.split())
    assert ran.err.count("Error") == 1
    assert not Path("NEW").exists()


def test_the_version_is_told() -> None:
    ran = invoke("--version")
    assert ran.code == 0
    assert ran.out.startswith(f"tvm-layout {tlx.__version__}, TVM 0.27")


def test_operators_are_listed_with_their_sizes_and_types() -> None:
    lines = invoke("operators").out.splitlines()
    assert ["gather_rows", "R", "M", "N", "int32"] in [line.split() for line in lines]
    assert len(lines) == 1 + len(known_operators())
    listed = json.loads(invoke("operators", "--json").out)
    (gemm,) = [one for one in listed if one["name"] == "gemm"]
    assert gemm["shape"] == ["M", "N", "K"]
    assert "bfloat16" in gemm["dtypes"]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("tune", "transposee", "--shape", "4", "4"), "Did you mean 'transpose'?"),
        ((*TUNE[:5], "--dtype", "flaot32"), "Did you mean 'float32'?"),
        (("layout", "Blokced([1])"), "Did you mean 'Blocked'?"),
        (("explian", "x.py"), "Did you mean 'explain'"),
    ],
)
def test_a_word_that_is_nearly_right_is_asked_for(words: tuple[str, ...], asked: str) -> None:
    ran = invoke(*words)
    assert ran.code == 2
    assert asked in ran.err


_KERNEL = """from tests.report.test_explain import make_transpose
s, args = make_transpose(0)
"""


def test_explain_and_simulate_write_json(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(_KERNEL)
    told = json.loads(invoke("explain", tmp_path / "kernel.py", "--json").out)
    assert told["bank_conflicts"] == 3968
    assert told["accesses"][2]["conflict_degree"] == 32
    assert told["limit"]["name"] == "parallelism"
    assert "swizzle" in "".join(advice["line"] for advice in told["advice"])
    run = json.loads(invoke("simulate", tmp_path / "kernel.py", "--json").out)
    assert run["accesses"][2]["bank_conflicts"] == 3968
    assert run["launches"] == [{"kernel": "main_kernel", "sampled": 4, "blocks": 4, "barriers": 4}]


def test_what_is_drawn_is_told_as_json(tmp_path: Path) -> None:
    """A line about the picture stood behind the JSON."""
    (tmp_path / "kernel.py").write_text(_KERNEL)
    picture = ["--picture", tmp_path / "banks.svg"]
    ran = invoke("explain", tmp_path / "kernel.py", "--json", *picture)
    assert json.loads(ran.out)["bank_conflicts"] == 3968
    assert ran.err == f"Wrote {picture[1]}.\n"
    ran = invoke("explain", tmp_path / "kernel.py", "--json", "--pipeline")
    assert (ran.code, ran.out) == (2, "")
    ran = invoke(*DRAWN, "--json", "-o", tmp_path / "drawn.svg")
    told = json.loads(ran.out)
    assert told["sizes"] == {"dim0": 16, "dim1": 16}
    assert told["bases"] == json.loads(json.dumps(_bases()))
    assert ran.err.startswith("Wrote ")


def _bases() -> dict[str, object]:
    layout = parse(_BLOCKED)
    assert isinstance(layout, Layout)
    linear = layout.to_linear((16, 16))
    return {name: linear.basis(name) for name in linear.in_dims}


def test_best_writes_json(tuned: tuple[Path, Ran]) -> None:
    (record,) = json.loads(invoke("best", tuned[0], "--json").out)
    assert record["id"] in tuned[1].out


def test_a_kernel_is_lowered_for_the_architecture_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(_KERNEL)
    said = [invoke("explain", tmp_path / "kernel.py", "--arch", arch) for arch in ("sm_80", "x")]
    assert '"arch": "sm_80"' in said[0].out
    assert said[1].code == 2
    assert "sm_80" in said[1].err


@pytest.mark.parametrize(
    ("argv", "is_command"),
    [
        (["python", "-m", "tvm_layout_ext", "tune"], True),
        (["python", "-X", "dev", "-m", "tvm_layout_ext"], True),
        (["python", "/usr/bin/tvm-layout", "tune"], True),
        (["python", "-m", "pytest"], False),
        (["python"], False),
        (["python", "-m"], False),
        (["python", "train.py", "-m", "tvm_layout_ext"], False),
        (["python", "-m", "pytest", "-m", "tvm_layout_ext"], False),
        (["python", "-c", "import tvm_layout_ext", "tvm-layout"], False),
    ],
)
def test_only_the_command_line_handles_interrupts_itself(argv: list[str], is_command: bool) -> None:
    assert is_command_line(argv) == is_command


@pytest.mark.parametrize(
    ("words", "is_imported"), [(["operators"], False), (["layout", "Blocked(...)"], True)]
)
def test_commands_that_need_no_pytorch_do_not_wait_for_it(
    words: list[str], is_imported: bool, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("print('imported')\nraise ImportError('none')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "tvm_layout_ext", *words],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ("imported" in done.stdout) == is_imported


def test_a_name_of_two_lines_is_told_in_one() -> None:
    ran = invoke("replay", "two\nlines")
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("text", ["Blocked(...)", "Blocked", "", "((("])
def test_a_layout_that_is_none_is_answered_by_one_that_is(text: str) -> None:
    ran = invoke("layout", text, "--shape", "16x16")
    assert ran.code == 2
    (sentence,) = ran.err.splitlines()
    example = sentence.partition("e.g. ")[2].rstrip(".")
    assert invoke("layout", example, "--shape", "16x16").code == 0
