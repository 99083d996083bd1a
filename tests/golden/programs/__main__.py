"""Compare the corpus with what was committed, or rewrite it."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time

import tvm_layout_ext  # noqa: F401 (once, before the processes part)
from tests.golden.programs import store
from tests.golden.programs.catalogue import programs
from tests.golden.programs.program import Record, record


def _recorded(name: str) -> tuple[str, Record, float]:
    start = time.process_time()
    return name, record(programs()[name]), time.process_time() - start


def records(names: list[str], jobs: int, *, slowest: int = 0) -> dict[str, Record]:
    """What the package makes of some programs now, by some processes side by side."""
    # TVM parses its tensor intrinsics for 6 seconds: before the processes part, not in each.
    import tvm.s_tir.tensor_intrin.cuda  # noqa: F401

    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        found = list(pool.imap_unordered(_recorded, names))
    for name, _, seconds in sorted(found, key=lambda one: -one[2])[:slowest]:
        print(f"{seconds:6.2f} s {name}")
    return {name: made for name, made, _ in found}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.programs", description=__doc__)
    parser.add_argument("--update-golden", action="store_true", help="rewrite what is committed")
    parser.add_argument("-k", default="", metavar="TEXT", help="only names with this text in them")
    parser.add_argument("-j", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--slowest", type=int, default=0, help="name so many that took longest")
    return parser.parse_args()


def main() -> int:
    """Print which programs changed, and the first one's difference; 1 if any did."""
    options, committed = _arguments(), store.read()
    names = [name for name in programs() if options.k in name]
    if not names:
        print(f"No program has {options.k!r} in its name.")
        return 1
    before = {n: r for n, r in committed.items() if options.k in n}
    after = records(names, options.j, slowest=options.slowest)
    changed = store.changed(before, after)
    if not changed:
        print(f"golden: unchanged, {len(after)} programs")
        return 0
    print(f"golden: {len(changed)} of {len(after)} programs changed")
    print("\n".join(changed))
    if both := sorted(n for n in before.keys() & after if before[n] != after[n]):
        print(f"{both[0]}:\n{store.difference(before[both[0]], after[both[0]])}")
    if not options.update_golden:
        return 1
    kept = {n: r for n, r in committed.items() if n not in before}
    store.write({**kept, **after})
    return 0


if __name__ == "__main__":
    sys.exit(main())
