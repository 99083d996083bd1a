"""``tvm-layout report``: the page and the plots of a log, and every refusal."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_cli import invoke
from tests.cli.test_logs import write
from tests.report.page.logs import transposes
from tests.tune.helpers import make_record
from tvm_layout_ext.report.page import kernel, render


def test_report_writes_the_page_and_the_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    log, out = write(tmp_path / "log", *transposes()), tmp_path / "report.html"
    ran = invoke("report", log, "-o", out, "--no-kernels", "--png", tmp_path / "png")
    assert ran.code == 0, ran.err
    assert ran.err == "Reading transpose 256x256 float32 on NVIDIA H200.\n"
    assert ran.out.splitlines()[0] == f"Wrote {out}."
    assert len(list((tmp_path / "png").glob("*.png"))) == 2
    page = out.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "The winner's memory accesses" not in page


def test_report_writes_json_alone(tmp_path: Path) -> None:
    log, out = write(tmp_path / "log", *transposes()), tmp_path / "report.html"
    ran = invoke("report", log, "-o", out, "--no-kernels", "--json")
    (told,) = json.loads(ran.out)
    assert (told["workload"], told["trials"]) == ("transpose 256x256 float32", 6)
    assert (told["winner"]["trial"], told["default"]["trial"]) == (4, 0)
    assert "us, " in told["verdict"]
    assert f"Wrote {out}" in ran.err


def test_a_second_report_simulates_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_LAYOUT_EXT_CACHE", str(tmp_path / "cache"))
    # The page says when it was written.
    monkeypatch.setattr(render, "now", lambda: "2026-01-01T00:00:00.000Z")
    log = write(tmp_path / "log", *transposes())
    first, second = tmp_path / "first.html", tmp_path / "second.html"
    assert invoke("report", log, "-o", first).code == 0

    def again(*_: object) -> None:
        raise AssertionError("simulated again")

    monkeypatch.setattr(kernel, "_told", again)
    ran = invoke("report", log, "-o", second)
    assert ran.code == 0, ran.err
    assert first.read_text() == second.read_text()


def test_report_explains_the_winner(tmp_path: Path) -> None:
    log, out = write(tmp_path / "log", *transposes()), tmp_path / "report.html"
    ran = invoke("report", log, "-o", out)
    assert ran.code == 0, ran.err
    page = out.read_text()
    assert ran.out == f"Wrote {out}.\n"
    assert page.count("The winner's memory accesses") == 1
    assert "wavefronts (least)" in page
    assert "Lanes by bank" in page


@pytest.mark.parametrize("before", [None, "the page before"])
def test_report_on_a_full_disk_left_an_empty_page(
    before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, out = write(tmp_path / "log", make_record()), tmp_path / "out" / "r.html"
    out.parent.mkdir()
    if before is not None:
        out.write_text(before)

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    ran = invoke("report", log, "-o", out, "--no-kernels")
    kept = "" if before is None else "; it is as it was"
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-1] == f"Error: Cannot write {out}: No space left on device{kept}."
    assert [path.read_text() for path in out.parent.iterdir()] == ([before] if before else [])


def test_plots_on_a_full_disk_leave_no_part_of_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells a full disk by a short write, and then an error."""
    pytest.importorskip("matplotlib")
    log, folder = write(tmp_path / "log", *transposes()), tmp_path / "png"
    real = os.fsync

    def full(handle: int) -> None:
        if str(folder) in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    out = tmp_path / "r.html"
    ran = invoke("report", log, "-o", out, "--no-kernels", "--png", folder)
    assert ran.out == f"Wrote {out}.\n"
    want = f"Error: Cannot write plots in {folder}: No space left on device."
    assert ran.err.splitlines()[-1] == want
    assert list(folder.iterdir()) == []


def test_pages_are_written_through_links_and_to_what_is_no_file(tmp_path: Path) -> None:
    log, page = write(tmp_path / "log", make_record()), tmp_path / "page.html"
    link = tmp_path / "link.html"
    link.symlink_to(page)
    assert invoke("report", log, "-o", link, "--no-kernels").code == 0
    assert link.is_symlink()
    assert page.read_text().startswith("<!DOCTYPE html>")
    nowhere = tmp_path / "null.html"
    nowhere.symlink_to("/dev/null")
    ran = invoke("report", log, "-o", nowhere, "--no-kernels")
    assert (ran.code, ran.out) == (0, f"Wrote {nowhere}.\n")
    assert nowhere.is_char_device()


def test_report_says_what_was_skipped(tmp_path: Path) -> None:
    log = write(tmp_path / "log", make_record())
    foreign = json.dumps(make_record().to_json() | {"schema_version": 9})
    with (log / "trials.jsonl").open("a") as file:
        file.write(f"{{broken\n{foreign}\n")
    ran = invoke("report", log, "-o", tmp_path / "r.html", "--no-kernels")
    assert ran.code == 0
    said = "Skipped 1 corrupt line and 1 record of a schema version other than 1."
    assert ran.err.startswith(f"Warning: {said}\n")
    assert said in (tmp_path / "r.html").read_text()


def test_without_jinja2_the_extra_is_named(tmp_path: Path) -> None:
    log = write(tmp_path / "log", make_record())
    code = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from tvm_layout_ext.cli import main\n"
        f"sys.argv = ['tvm-layout', 'report', {str(log)!r}, '-o', 'r.html', '--no-kernels']\n"
        "main()\n"
    )
    root = str(Path(__file__).parents[2])
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        check=False, env=os.environ | {"PYTHONPATH": os.pathsep.join([root, *sys.path])},
    )  # fmt: skip
    assert ran.returncode == 2, ran.stderr
    assert "needs jinja2, which is not installed: pip install 'tvm-layout-ext[viz]'." in ran.stderr
    assert not (tmp_path / "r.html").exists()
