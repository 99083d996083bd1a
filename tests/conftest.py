"""Sampling of the large matrices, and skips with a reason for what this machine lacks."""

from __future__ import annotations

import gc
import inspect
import os
import random
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import frames, sampling

#: What is built stays on no disk, so that no test sees what another one has made otherwise.
os.environ["TVM_LAYOUT_EXT_CACHE"] = "/dev/null/cache"
#: Files of few tests that take long are the first to be handed out: of three workers one mostly
#: waits for processes, and two compute.
_LONG = (
    "tune/measure/rpc/test_run.py",
    "models/test_whole_tiles.py",
    "models/test_convolutions.py",
    "tune/measure/test_run_local.py",
    "transform/attention/test_lower_attention.py",
    "models/test_attention.py",
    "golden/test_programs.py",
    "tune/measure/builder/test_builder.py",
    "coalesce/test_two_orders.py",
    "models/test_default_schedule.py",
    "transform/hopper/test_lower_warpgroups.py",
    "models/test_compose_attention.py",
    "models/test_wide_groups.py",
    "tune/records/test_killed.py",
    "transform/hopper/test_pingpong.py",
    "models/test_paged_attention.py",
    "cli/test_rpc.py",
    "models/test_llm.py",
    "golden/test_compiled_programs.py",
    "benchmarks/test_sweep.py",
    "tune/measure/test_simulated.py",
    "tune/search/test_tune.py",
    "tune/apply/test_module.py",
    "test_tutorials.py",
    "schedules/test_gemm_hopper.py",
    "tune/export/test_export.py",
    "tune/apply/test_shipped_logs.py",
    "tune/apply/test_programs.py",
    "test_docs.py",
    "cli/test_cli.py",
    "benchmarks/test_stock_tvm.py",
    "schedules/test_gemm.py",
)
#: Files whose cases are documents, names and programs, of which each is a test of its own.
_EACH = ("golden/", "test_docs.py", "test_site.py", "test_tutorials.py", "test_names.py")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="run every large matrix whole")
    parser.addoption("--matrix-seed", type=int, default=sampling.SEED, help="seed of the sample")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "matrix: one case of a large matrix; sampled by default")
    config.addinivalue_line(
        "markers", "whole: many seconds that others nearly cover; not by default"
    )
    config.addinivalue_line("markers", "costly: a case takes half a second or more; one may do")
    sampling.whole = config.getoption("--whole")
    sampling.seed = config.getoption("--matrix-seed")
    inspect.getouterframes = frames.outer_frames
    profile = hypothesis.settings(deadline=None, derandomize=not sampling.whole, print_blob=True)
    hypothesis.settings.register_profile(
        "sample", profile, max_examples=sampling.matrix_examples(300)
    )
    hypothesis.settings.load_profile("sample")


class _Turned(pytest.Package):
    """A folder of tests that each of pytest-xdist's workers begins to read at another place.

    pytest rewrites the assertions of every file when it reads it, 8 of the 17 seconds that reading
    all tests takes, and keeps the result on disk: so each worker does its part of them.
    """

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        found = list(super().collect())
        worker = getattr(self.config, "workerinput", {"workerid": "gw0", "workercount": 1})
        at = int(worker["workerid"].removeprefix("gw")) * len(found) // worker["workercount"]
        return found[at:] + found[:at]


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if not hasattr(parent.config, "workerinput") or not (path / "__init__.py").exists():
        return None
    return _Turned.from_parent(parent, path=path)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Keep what all tests are made of from the garbage collector.

    It would look through these half a million objects time and again: 6% of the time of all tests.
    """
    gc.disable()
    found = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    return found


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _skip_what_is_missing(items)
    # Who names tests wants them all.
    named = config.option.keyword or config.option.markexpr
    if not (config.getoption("--whole") or named):
        _sample(config, items)
    if hasattr(config, "workerinput"):
        # All workers must have one order.
        items.sort(key=lambda item: item.path)
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    """Where the tests of an item's file come: long files first, all others as they were."""
    file = item.nodeid.split("::")[0].removeprefix("tests/")
    return _LONG.index(file) if file in _LONG else len(_LONG)


def _sample(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a seeded sixtieth of each marked function's cases, and a fifth of most others'.

    At least two, but of what is marked ``costly`` one; of what is marked ``whole`` none.
    """
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        functions.setdefault(item.nodeid.split("[")[0], []).append(item)
    dropped = {one for one in items if one.get_closest_marker("whole")}
    every = len(dropped)
    for name, cases in sorted(functions.items()):
        marked = [one for one in cases if one.get_closest_marker("matrix")]
        least = 1 if cases[0].get_closest_marker("costly") else 2
        size = sampling.sample_size(len(marked), least)
        if not marked and not name.removeprefix("tests/").startswith(_EACH):
            marked, size = cases, sampling.share_size(len(cases), least)
        if size < len(marked):
            rng = random.Random(f"{config.getoption('--matrix-seed')} {name}")
            dropped |= set(marked) - set(rng.sample(marked, size))
            every += len(marked)
    if dropped:
        config.hook.pytest_deselected(items=sorted(dropped, key=lambda item: item.nodeid))
        items[:] = [item for item in items if item not in dropped]
    config.stash[_COVERAGE] = (every, len(dropped))


_COVERAGE = pytest.StashKey[tuple[int, int]]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand a pytest-xdist worker's counts to the controller, which collects nothing itself."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["matrix"] = session.config.stash.get(_COVERAGE, (0, 0))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object) -> None:
    # Every worker collects everything, so any one's counts are the whole session's.
    node.config.stash[_COVERAGE] = tuple(getattr(node, "workeroutput", {}).get("matrix", (0, 0)))  # type: ignore[attr-defined]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.getoption("--whole"):
        terminalreporter.write_line("matrices: whole")
        return
    cases, dropped = config.stash.get(_COVERAGE, (0, 0))
    kept = cases - dropped
    terminalreporter.write_line(
        f"matrices: seed {config.getoption('--matrix-seed')}, {kept} of {cases} cases "
        f"({100 * kept / cases if cases else 100:.0f}%); hypothesis: "
        f"{sampling.matrix_examples(300)} examples where a whole run draws 300"
    )


def _skip_what_is_missing(items: list[pytest.Item]) -> None:
    no_nvcc = pytest.mark.skip(reason="no nvcc on this machine's PATH")
    no_gpu = pytest.mark.skip(reason="no CUDA GPU on this machine")
    have_nvcc = shutil.which("nvcc") is not None
    marked = [item for item in items if item.get_closest_marker("gpu")]
    have_gpu = bool(marked) and _has_gpu()
    for item in items:
        if item.get_closest_marker("nvcc") and not have_nvcc:
            item.add_marker(no_nvcc)
        if item.get_closest_marker("gpu") and not have_gpu:
            item.add_marker(no_gpu)


def _has_gpu() -> bool:
    from tvm_layout_ext._compat import has_gpu

    return has_gpu()


@pytest.fixture(scope="session", autouse=True)
def _forked_workers() -> Iterator[None]:
    """Fork the processes that build and try, but in whole runs and where CUDA would be in a fork.

    That they start as they do for users is seen by ``tune/measure/test_worker.py``, and of servers
    by ``tune/measure/rpc/test_run.py``.
    """
    from tests import forks
    from tvm_layout_ext.tune.measure import worker

    with pytest.MonkeyPatch.context() as patch:
        if not (sampling.whole or _has_gpu()):
            patch.setattr(worker, "start", forks.start)
            patch.setattr(forks, "enabled", True)
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium, playwright's own or the machine's."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        found = own if os.path.exists(own) else next(filter(None, map(shutil.which, _BROWSERS)), "")
        if not found:
            pytest.skip("no chromium on this machine")
        # The sandbox needs user namespaces, which containers often lack; the pages are our own.
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()
