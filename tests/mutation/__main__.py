"""Plant each fault that `planted/` lists in a copy of the tree and run the tests that reach it:

    python -m tests.mutation                 all mutants; the tests that reach them are found first
    python -m tests.mutation --resume        those that an interrupted run left, with what it found
    python -m tests.mutation --reach         what reaches them is found anew; results are kept
    python -m tests.mutation --only axis     those whose name holds a text
    python -m tests.mutation --report        the table of docs/testing.md from the last results

A mutant is killed by a test that fails or takes far longer than it did; the tests that reach it
run from near to far and from short to long, with -x. A line that no test is seen to reach, since it
runs on import, meets the whole of `make test`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.mutation.mutant import Mutant, planted, probed

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = planted(Path(__file__).with_name("planted"))
BATCHES = (10.0, 60.0)  # seconds of tests, by the time each took, that a first and second run take
SLOWER = 5.0  # a run that takes that many times as long as it should hangs
LEAST = 120.0  # seconds that any run may take


def copy_tree(folder: Path) -> None:
    """Copy the files that git knows or would add."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.splitlines()
    for name in listed:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def pytest_in(folder: Path, arguments: Sequence[str], limit: float, **more: str
              ) -> tuple[int | None, str]:
    """Run pytest in a copy of the tree: its exit status, None where it took too long, and what it
    printed."""
    env = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1",
                        "TILEC_CACHE_DIR": str(folder / ".cache")} | more
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.STDOUT, start_new_session=True) as process:
        try:
            printed, _ = process.communicate(timeout=limit)
            return process.returncode, printed
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, ""


def failed_tests(printed: str, known: Container[str]) -> list[str]:
    """The tests in pytest's summary, of lines `FAILED name - message`; " - " may stand in a name,
    too."""
    out = []
    for line in printed.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            parts = line.partition(" ")[2].split(" - ")
            names = itertools.accumulate(parts, "{} - {}".format)
            out.append(next((n for n in names if n in known), parts[0]))
    return out


def distance(mutant: Mutant, test: str) -> int:
    """0 for a test whose file or case is named like the mutant's, 1 for one of its folder, 2 for
    others."""
    folder, near = Path(test.partition("::")[0]).parent, Path(mutant.path)
    return 0 if near.stem in test else 1 if near.parent.name == folder.name else 2


class Reach:
    """Which tests reach which mutant, by its name, and how long each test takes."""

    def __init__(self, tests: dict[str, list[str]], seconds: dict[str, float]) -> None:
        self.tests = tests
        self.seconds = seconds

    @classmethod
    def measured(cls, mutants: Sequence[Mutant], jobs: int, chosen: Sequence[str]) -> Reach:
        """From one run of the tests with a probe at each mutant's line."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            copy_tree(folder)
            marks: dict[Path, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
            for number, mutant in enumerate(mutants):
                path = mutant.source(folder)
                marks[path][mutant.line(path.read_text())].append(number)
            for path, lines in marks.items():
                path.write_text(probed(path.read_text(), lines))
            hits, report = folder / ".hits", folder / ".report.json"
            hits.mkdir()
            pytest_in(folder, ["-n", str(jobs), "-p", "tests.mutation.durations", *chosen], 7200,
                      MUTATION_HITS=str(hits), MUTATION_DURATIONS=str(report))
            seconds = json.loads(report.read_text())
            reached: dict[int, set[str]] = defaultdict(set)
            for file in hits.iterdir():
                for line in file.read_text().splitlines():
                    number_text, _, test = line.partition("\t")
                    reached[int(number_text)].add(test)
        return cls({mutant.name: sorted(reached[number] & seconds.keys(), key=lambda t: seconds[t])
                    for number, mutant in enumerate(mutants)}, seconds)

    def renewed(self) -> Reach:
        """Of an earlier run, without the tests that are gone since."""
        with tempfile.TemporaryDirectory() as name:
            copy_tree(Path(name))
            _, printed = pytest_in(Path(name), ["--collect-only"], 600)
        there = set(printed.splitlines())
        return Reach({name: [t for t in tests if t in there] for name, tests in self.tests.items()},
                     {t: s for t, s in self.seconds.items() if t in there})

    def batches(self, mutant: Mutant, most: float) -> list[list[str]]:
        """The tests that reach it: the nearest and shortest, more, and all, or what takes `most`
        seconds; if there are none, whatever there is ([])."""
        tests = sorted(self.tests[mutant.name], key=lambda t: (distance(mutant, t),
                                                               self.seconds[t]))
        out: list[list[str]] = []
        for budget in sorted({*BATCHES, most}):
            if budget > most:
                break
            batch, total = [], 0.0
            for test in tests:
                total += self.seconds[test]
                if total > budget and batch:
                    break
                batch.append(test)
            if batch not in out:
                out.append(batch)
        return out


def killer(mutant: Mutant, folder: Path, reach: Reach, most: float) -> str:
    """The test that kills a mutant planted in `folder`; "" where it lives."""
    for batch in reach.batches(mutant, most):
        expected = sum(reach.seconds[t] for t in batch or reach.seconds)
        arguments = ["-x", "--tb=no", "-rfE"]
        if batch:
            # Too many names for a command line go by a file.
            (folder / ".tests").write_text("\n".join(batch))
            arguments += ["@.tests"]
        status, printed = pytest_in(folder, arguments, LEAST + SLOWER * expected)
        if status == 0:
            continue
        failed = failed_tests(printed, reach.seconds)
        return failed[0] if failed else "too slow" if status is None else f"pytest ends: {status}"
    return ""


def run(mutants: Sequence[Mutant], jobs: int, reach: Reach, results: dict[str, dict[str, Any]],
        file: Path, most: float) -> None:
    """Add to `results`, and to their file, what killed each mutant, by its name."""
    with tempfile.TemporaryDirectory() as name:
        folders: SimpleQueue[Path] = SimpleQueue()
        for k in range(jobs):
            copy_tree(Path(name, str(k)))
            folders.put(Path(name, str(k)))
        done, names = itertools.count(1), {m.name for m in MUTANTS}

        def one(mutant: Mutant) -> None:
            folder, began = folders.get(), time.monotonic()
            path = mutant.source(folder)
            text = path.read_text()
            path.write_text(mutant.apply(text))
            try:
                by = killer(mutant, folder, reach, most)
            finally:
                path.write_text(text)
                folders.put(folder)
            results[mutant.name] = {"kind": mutant.kind, "killed_by": by,
                                    "reached_by": len(reach.tests[mutant.name])}
            kept = {name: dict(results[name]) for name in sorted(names & results.keys())}
            file.write_text(json.dumps(kept, indent=0) + "\n")
            print(f"{next(done):4} of {len(mutants)}  {time.monotonic() - began:6.1f} s  "
                  f"{by or 'LIVES'}  {mutant.name}", flush=True)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(one, mutants))


def table(results: dict[str, dict[str, Any]]) -> str:
    """The score by folder, and the mutants that live, as Markdown."""
    equivalent = {m.name: m.equivalent for m in MUTANTS if m.equivalent}
    folders = Counter(name.split("/")[0].split(":")[0] for name in results)
    killed = Counter(name.split("/")[0].split(":")[0] for name, r in results.items()
                     if r["killed_by"])
    alive = [name for name, r in results.items() if not r["killed_by"]]
    same = [name for name in alive if name in equivalent]
    whole = len(results) - len(same)
    lines = ["| folder | planted | killed |", "| --- | --- | --- |"]
    lines += [f"| {folder} | {n} | {killed[folder]} |" for folder, n in sorted(folders.items())]
    lines += [f"| all | {len(results)} | {sum(killed.values())} |", "",
              f"{sum(killed.values())} of {whole} that are not equivalent: "
              f"{100 * sum(killed.values()) / max(whole, 1):.1f} %.", ""]
    lines += [f"- equivalent: `{name}`: {equivalent[name]}" for name in same]
    lines += [f"- lives: `{name}`" for name in alive if name not in equivalent]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Exit 1 where a mutant that is not equivalent lives."""
    parser = argparse.ArgumentParser("python -m tests.mutation", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutants whose name holds this text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tests", nargs="*", default=[], help="folders of tests; all if left out")
    parser.add_argument("--seconds", type=float, default=math.inf,
                        help="of the tests that reach a mutant, those that take so long in all")
    parser.add_argument("--resume", action="store_true",
                        help="go on with a run that was interrupted")
    parser.add_argument("--reach", action="store_true",
                        help="only find anew which tests reach which mutant")
    parser.add_argument("--into", type=Path, default=Path(__file__).parent,
                        help="the folder of results.json and reach.json")
    parser.add_argument("--report", action="store_true", help="print the last results")
    given = parser.parse_args()
    file, reach_file = given.into / "results.json", given.into / "reach.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    if not given.report:
        mutants = [m for m in MUTANTS if given.only in m.name]
        if given.reach:
            reach = Reach.measured(MUTANTS, given.jobs, given.tests)
            reach_file.write_text(json.dumps(vars(reach)))
            return 0
        if given.resume and reach_file.exists():
            reach = Reach(**json.loads(reach_file.read_text())).renewed()
            mutants = [m for m in mutants if m.name in reach.tests and m.name not in results]
        else:
            results = {} if not given.only else results
            reach = Reach.measured(mutants, given.jobs, given.tests)
            reach_file.write_text(json.dumps(vars(reach)))
        run(mutants, given.jobs, reach, results, file, given.seconds)
    print(table(results))
    equivalent = {m.name for m in MUTANTS if m.equivalent}
    return int(any(not r["killed_by"] for n, r in results.items() if n not in equivalent))


if __name__ == "__main__":
    sys.exit(main())
