"""Programs that wait for each other: each a coroutine that gives way while it spins in a loop.

Only kernels whose `while` loops read memory that the kernel writes, and those whose clusters work
together (`interp/cluster.py`), run like this; the warp roles of a program are coroutines too
(`interp/roles.py`). Exactly one coroutine runs at any time, so nothing here needs a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tilec.errors import InterpreterError, Location
from tilec.interp.blame import where
from tilec.interp.frame import Data
from tilec.ir.core import Op

SPINS = 64  # iterations of a loop between giving way
IDLE_ROUNDS = 50  # rounds over all programs without any change before it is a deadlock


class _Stopped(BaseException):
    """Unwinds a program that will not run on."""


class Scheduler:
    """Resumes coroutines, one at a time. moved: whether one of them got anywhere since it was last
    reset."""

    def __init__(self) -> None:
        self.moved = False
        self.token = threading.Semaphore(0)
        self.current: Coroutine | None = None
        self.stopping = False

    def stop(self, waiting: Sequence[Coroutine]) -> None:
        """Unwind those that have begun and not ended."""
        self.stopping = True
        for coroutine in waiting:
            if coroutine.thread.is_alive() and not coroutine.done:
                coroutine.resume()


class Coroutine:
    """A body in a thread of its own, resumed and left by handing over a token."""

    def __init__(self, turns: Scheduler, number: int, body: Callable[[int], None]) -> None:
        self.turns, self.number, self.body = turns, number, body
        self.token = threading.Semaphore(0)
        self.done = False
        self.error: BaseException | None = None
        self.where: Location | None = None
        self.last: list[np.ndarray] = []
        # While it waits: the op, and what says what is lacking.
        self.blocked: tuple[Op, Callable[[], str]] | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.token.acquire()
        try:
            if not self.turns.stopping:
                self.body(self.number)
        except _Stopped as e:  # a program is unwound with the roles that it has begun
            self.error = None if self.turns.stopping else e
        except BaseException as e:  # handed to the caller's thread
            self.error = e
        self.done = True
        self.turns.token.release()

    def resume(self) -> None:
        """Run until it ends or gives way."""
        if not self.thread.is_alive():
            try:
                self.thread.start()
            except RuntimeError:  # no more threads
                raise InterpreterError(
                    f"program {self.number} cannot begin beside so many others that wait for each "
                    "other", None, "launch fewer programs") from None
        self.turns.current = self
        self.token.release()
        self.turns.token.acquire()

    def give_way(self) -> None:
        """Called in the coroutine's thread."""
        self.turns.token.release()
        self.token.acquire()
        if self.turns.stopping:
            raise _Stopped


class Turns(Scheduler):
    """Runs programs in order, going on to the next one whenever one spins."""

    def __init__(self, name: Callable[[int], str], changes: Callable[[], int]) -> None:
        super().__init__()
        self.name, self.changes = name, changes

    def run(self, order: Iterable[int], body: Callable[[int], None]) -> None:
        """Run `body` for each program; raises what one of them raises, or for a deadlock."""
        waiting: list[Coroutine] = []
        idle = 0
        try:
            for number in order:
                waiting.append(Coroutine(self, number, body))
                waiting[-1].resume()
                if waiting[-1].error is not None:
                    raise waiting[-1].error
                if waiting[-1].done:
                    waiting.pop()
            while waiting:
                before, count = self.changes(), len(waiting)
                self.moved = False
                for program in waiting:
                    program.resume()
                    if program.error is not None:
                        raise program.error
                waiting = [p for p in waiting if not p.done]
                self.moved |= len(waiting) < count or self.changes() != before
                idle = 0 if self.moved else idle + 1
                if idle == IDLE_ROUNDS:
                    raise self._deadlock(waiting)
        finally:
            self.stop(waiting)

    def spin(self, iteration: int, values: Sequence[Data], where: Location) -> None:
        """Called by a loop at each iteration, with its carried values."""
        program = self.current
        if program is None or iteration % SPINS != SPINS - 1:
            return
        arrays = [a for a, _ in values]
        same = len(arrays) == len(program.last) and all(
            a.dtype == b.dtype and a.tobytes() == b.tobytes()
            for a, b in zip(arrays, program.last, strict=True))
        self.moved |= not same
        program.last, program.where = [a.copy() for a in arrays], where
        program.give_way()

    def _deadlock(self, waiting: Sequence[Coroutine]) -> InterpreterError:
        blocked = [(self.name(p.number), *p.blocked) for p in waiting if p.blocked is not None]
        if blocked:
            lines = [f"{name} at {where(op)}: {lacks()}" for name, op, lacks in blocked[:8]]
            lines += [f"{self.name(p.number)} at {p.where.file}:{p.where.line}: goes round in this "
                      "loop" for p in waiting[:8] if p.blocked is None and p.where is not None]
            first = blocked[0][1].loc
            return InterpreterError(
                "\n    ".join(["programs wait for ever, since no other one provides what they wait "
                               "for:", *lines]), first if first.line else None,
                "every program of a cluster must come to its barriers; check counts, expected "
                "bytes and parities of mbarriers")
        names = ", ".join(self.name(p.number) for p in waiting[:4])
        more = f" and {len(waiting) - 4} more" if len(waiting) > 4 else ""
        return InterpreterError(
            f"{names}{more} wait in this loop for a value that no program will write",
            waiting[0].where, "check who signals, and that every program does it before it waits")
