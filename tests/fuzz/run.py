"""Runs programs through tilec and compares what they leave in memory with what the machine in numpy
says. Programs run in forked children, so that whatever happens there is a verdict."""

from __future__ import annotations

import itertools
import linecache
import os
import signal
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import tilec
from tests.fuzz.numerics import LARGEST_F32, is_float
from tests.fuzz.program import Argument, Memory, Program, fill
from tilec import knobs
from tilec.errors import CompilationError, InternalError, OutOfResources, TilecError
from tilec.runtime.device import DeviceBuffer

CPU_LEVELS = ("tile", "gpu", "lowered", "ptx")
SECONDS = 20.0  # of processor time, after which a case hangs; ten times as long if it only waits
_count = itertools.count()


@dataclass(frozen=True)
class Verdict:
    """kind: "right", "refused" (the target lacks what it takes), or a failure: "mismatch", "error"
    (a valid program is refused), "internal" (a traceback), "death", "hang". where: the level."""

    kind: str
    where: str = ""
    text: str = ""
    different: tuple[tuple[str, int, str, str], ...] = ()  # (argument, element, got, expected)

    @property
    def failed(self) -> bool:
        return self.kind not in ("right", "refused")

    def same(self, other: Verdict) -> bool:
        """Whether this is another sight of the same failure."""
        first = self.text.split(":")[0] if self.kind in ("error", "internal") else ""
        return self.kind == other.kind and other.text.startswith(first)


# -- launching ------------------------------------------------------------------------------------

def kernel_of(source: str) -> tilec.JITFunction:
    """The kernel of a program's text, as if it stood in a file."""
    file = f"<fuzz {next(_count)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"__name__": "fuzz"}
    exec(compile(source, file, "exec", dont_inherit=True), scope)
    kernel: tilec.JITFunction = scope["kernel"]
    return kernel


def placed(x: np.ndarray, shift: int) -> np.ndarray:
    """A copy of an array that lies `shift` elements after a multiple of 16 bytes."""
    room = np.empty(x.size * x.itemsize + 32 + shift * x.itemsize, np.uint8)
    first = -room.ctypes.data % 16 + shift * x.itemsize
    out = room[first:first + x.size * x.itemsize].view(x.dtype)
    out[...] = x
    return out


class OnDevice:
    """An array's copy in device memory."""

    def __init__(self, x: np.ndarray, shift: int) -> None:
        room = np.zeros(shift * x.itemsize + x.nbytes, np.uint8)
        room[shift * x.itemsize:] = x.view(np.uint8)
        self.like, self.shift = x, shift
        self.buffer = DeviceBuffer.of(room.tobytes())
        self.dtype, self.shape = x.dtype, x.shape
        self.__cuda_array_interface__ = {
            "shape": x.shape, "typestr": "|V1", "version": 3,
            "data": (self.buffer.pointer + shift * x.itemsize, False)}

    def get(self) -> np.ndarray:
        raw = np.frombuffer(bytes(self.buffer.read()), np.uint8)
        return raw[self.shift * self.like.itemsize:].view(self.like.dtype)


def passed(a: Argument, array: Any) -> Any:
    """What a launch is given for an argument."""
    if a.fill == "number":
        return a.number
    if a.block is None:
        return array
    strides = [1]
    for n in a.extents[:0:-1]:
        strides.insert(0, strides[0] * n)
    return tilec.TensorDescriptor(array, a.extents, tuple(strides), a.block)


def launch(kernel: tilec.JITFunction, arguments: Sequence[Argument], grid: tuple[int, int],
           target: str, options: Mapping[str, Any], level: str = "ptx", seed: int = 0,
           constexprs: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
    """The arguments' arrays after a launch at a level ("cubin": on the GPU that is there)."""
    constexprs = constexprs or {}
    arrays = {a.name: placed(fill(a), a.shift) for a in arguments if a.fill != "number"}
    if level == "cubin":
        there = {a.name: OnDevice(arrays[a.name], a.shift) for a in arguments
                 if a.fill != "number"}
        kernel[grid](*(passed(a, there.get(a.name)) for a in arguments), **constexprs, **options)
        return {name: x.get() for name, x in there.items()}
    given = {a.name: passed(a, arrays.get(a.name)) for a in arguments}
    made = compiled(kernel, list(given.values()), target, options, constexprs)
    made.run({k: given[k] for k in made.signature}, grid, level=level, seed=seed)
    return arrays


def compiled(kernel: tilec.JITFunction, given: Sequence[Any], target: str,
             options: Mapping[str, Any], constexprs: Mapping[str, Any]) -> Any:
    """The kernel for these arguments; no cubin is made."""
    return kernel.specialize(given, {**constexprs, **options, "target": target}, dtypes=True)[0]


# -- verdicts -------------------------------------------------------------------------------------

def differences(arguments: Sequence[Argument], got: Mapping[str, np.ndarray], want: Memory
                ) -> list[tuple[str, int, str, str]]:
    out = []
    for i, a in enumerate(arguments):
        if a.fill == "number":
            continue
        x, y = got[a.name], want.arrays[i]
        if not is_float(a.dtype):
            bad = x != y
        else:
            with np.errstate(all="ignore"):  # signalling NaN
                x, y = x.astype(np.float64), y.astype(np.float64)
            bad = ~((x == y) & (np.signbit(x) == np.signbit(y)) | np.isnan(x) & np.isnan(y))
            if i in want.bound:
                bad &= ~_near(x, want.exact[i], want.bound[i], a.dtype)
        out += [(a.name, int(k), str(x[k]), str(y[k])) for k in np.flatnonzero(bad)[:4]]
    return out


def _near(x: np.ndarray, exact: np.ndarray, bound: np.ndarray, t: str) -> np.ndarray:
    most = {"float16": 65504.0, "float64": np.inf}.get(t, LARGEST_F32)
    with np.errstate(all="ignore"):
        over = np.isinf(x) & (np.abs(exact) + bound >= most) & (np.sign(x) == np.sign(exact))
        return (bound > 0) & ((np.abs(x - exact) <= bound) | over)


def order(program: Program, level: str) -> int:
    """The seed of the order in which programs and warps run."""
    return program.seed % 100 + (*CPU_LEVELS, "cubin").index(level)


def judge(program: Program, levels: Sequence[str] = CPU_LEVELS) -> Verdict:
    """What happens to a program at each level. Reject if it has no one meaning."""
    want, arguments, where = program.expected(), program.used(), "compile"
    try:
        kernel = kernel_of(program.source())
        for level in levels:
            where = level
            got = launch(kernel, arguments, program.grid, program.target, program.options, level,
                         order(program, level), program.constexprs)
            different = differences(arguments, got, want)
            if different:
                name, k, x, y = different[0]
                return Verdict("mismatch", level, f"{name}[{k}] is {x}, expected {y}",
                               tuple(different))
    except OutOfResources as e:
        return Verdict("refused", where, str(e))
    except CompilationError as e:
        kind = "refused" if f"the target is {program.target}" in str(e) else "error"
        return Verdict(kind, where, f"{type(e).__name__}: {e}")
    except InternalError as e:
        return Verdict("internal", where, f"InternalError: {e}")
    except TilecError as e:
        return Verdict("error", where, f"{type(e).__name__}: {e}")
    except Exception as e:
        return Verdict("internal", where, f"{type(e).__name__}: {e}\n{traceback.format_exc()}")
    return Verdict("right")


def _child(cases: Sequence[Program], levels: Sequence[str], seconds: float, pipe: Connection,
           log: str) -> None:
    with open(log, "wb") as f:
        os.dup2(f.fileno(), 2)
        os.dup2(f.fileno(), 1)
    # With `verify` no cubin comes from a cache.
    with knobs.scope(check=True, verify="cubin" not in levels):
        for case in cases:
            signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends the process
            verdict = judge(case, levels)
            pipe.send(verdict)
            if verdict.failed and "cubin" in levels:
                break  # what a fault leaves of a GPU's context serves nobody


def judged(cases: Sequence[Program], levels: Sequence[str] = CPU_LEVELS,
           seconds: float = SECONDS) -> Iterator[Verdict]:
    """A verdict for each program, run in forked children: a new one where one has ended."""
    left = list(cases)
    while left:
        mine, theirs = Pipe(duplex=False)
        with tempfile.NamedTemporaryFile() as log:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    _child(left, levels, seconds, theirs, log.name)
                    code = 0
                finally:
                    os._exit(code)
            theirs.close()
            try:
                while left:
                    if not mine.poll(10 * seconds):
                        os.kill(pid, signal.SIGPROF)
                    yield mine.recv()
                    left.pop(0)
            except EOFError:
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                if status == -signal.SIGPROF:
                    yield Verdict("hang", "", f"more than {seconds:g} s")
                    left.pop(0)
                elif status:
                    with open(log.name, errors="replace") as f:
                        yield Verdict("death", "", f"exit {status}: {f.read()[-2000:]}")
                    left.pop(0)
                continue
            os.waitpid(pid, 0)


