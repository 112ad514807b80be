"""Cases run by worker processes of their own, each with a limit of time: a case may end its
process, hang or raise anything, and the run goes on."""

from __future__ import annotations

import json
import os
import queue
import selectors
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

LIMIT = 10.0  # seconds a case
START_LIMIT = 120.0  # for what a worker imports


@dataclass
class Outcome:
    """kind: accepted, clean error, long, internal error, traceback, died, hang or wrong."""

    kind: str
    detail: str = ""
    case: dict[str, Any] = field(default_factory=dict)


KINDS = ("accepted", "clean error", "long", "internal error", "traceback", "died", "hang", "wrong")
FAILURES = KINDS[3:]


class Worker:
    """A process that answers each line of JSON with one."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.process: subprocess.Popen[str] | None = None

    def run(self, case: dict[str, Any]) -> Outcome:
        """The outcome of one case; the process is started anew where the last case ended it."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, "--worker"], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ)
            self._line(START_LIMIT)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        line = self._line(LIMIT)
        if line is None:
            self.stop()
            return Outcome("hang", f"more than {LIMIT:.0f} s", case)
        if not line:
            return Outcome("died", f"exit status {self.stop()}", case)
        return Outcome(**json.loads(line), case=case)

    def _line(self, limit: float) -> str | None:
        assert self.process is not None and self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            return self.process.stdout.readline() if selector.select(limit) else None

    def stop(self) -> int | None:
        """End the process, if there is one; its exit status."""
        if self.process is None:
            return None
        with self.process as process:  # closes its pipes
            if process.stdin is not None and not process.stdin.closed:
                process.kill()
        self.process = None
        return process.returncode


def run_all(module: str, cases: Iterator[dict[str, Any]], workers: int) -> Iterator[Outcome]:
    """The outcomes of the cases as they come."""
    lock, done = threading.Lock(), queue.Queue[Outcome | None]()

    def work() -> None:
        worker = Worker(module)
        try:
            while True:
                with lock:
                    case = next(cases, None)
                if case is None:
                    return
                done.put(worker.run(case))
        finally:
            worker.stop()
            done.put(None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    running = workers
    while running:
        outcome = done.get()
        if outcome is None:
            running -= 1
        else:
            yield outcome


def serve(run: Callable[[dict[str, Any]], Outcome]) -> None:
    """What a worker does: a line for each case. What cases print goes nowhere."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        answer = asdict(run(json.loads(line)))
        del answer["case"]
        print(json.dumps(answer), file=answers, flush=True)


def table(counts: dict[tuple[str, str], int], sources: Sequence[str]) -> str:
    """Counts by source and kind, as a Markdown table."""
    rows = [("", *KINDS), ("---",) * (len(KINDS) + 1)]
    rows += [(source, *(str(counts.get((source, kind), 0)) for kind in KINDS))
             for source in sources]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
