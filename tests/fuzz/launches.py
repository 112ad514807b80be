"""Bad launches: `python -m tests.fuzz.launches --cases 2000 --seed 1`.

Random arguments, views, options, grids and knobs, each launch in the interpreter and as PTX in the
simulator, in a child process. A launch has to give the result that numpy says, at both levels, or
to be refused with an error of tilec's own; a table counts what came, and each failure is printed
as a program.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes  # noqa: F401  (expressions name it)
import numpy as np

import tilec
import tilec.language as tl
from tilec import knobs
from tilec.errors import InternalError, TilecError
from tilec.eval.storage import storage_of

LIMIT_S = 20  # of silence, which counts as a hang, on a machine that has more to do
LEVELS = ("tile", "ptx")
EXACT = 1 << 11  # results below are exact in all types that a result is stored in


@tilec.jit
def combine(x, y, out, n, s, B: tl.constexpr, FLIP: tl.constexpr = False):
    at = tl.program_id(0) * B + tl.arange(0, B)
    on = at < n
    value = tl.load(x + at, mask=on, other=0) + tl.load(y + at, mask=on, other=0) * s
    if FLIP:
        value = -value
    tl.store(out + at, value, mask=on)


@tilec.jit
def mark(out, width, height, first: tl.int16, B: tl.constexpr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = ((z * height + y) * width + x) * B + tl.arange(0, B)
    tl.store(out + at, first + x + 5 * y + 7 * z)


@tilec.jit
def block(d, out, row, R: tl.constexpr, C: tl.constexpr):
    i, j = tl.arange(0, R), tl.arange(0, C)
    tl.store(out + i[:, None] * C + j[None, :], d.load([row, 1]))


KERNELS = {kernel.name: kernel for kernel in (combine, mark, block)}


class Odd:
    """Says nothing of what it is."""


class NoText:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class NoHash:
    def __hash__(self) -> int:
        raise ValueError("no hash")


class Index:
    def __index__(self) -> int:
        return 3


class Interface:
    """An array of another library, as far as it goes."""

    def __init__(self, found: Any) -> None:
        self.__cuda_array_interface__ = found


ANYTHING = (
    "None", "True", "0", "1", "-1", "3", "7.5", "1e400", "-1e400", "float('nan')", "10**30",
    "-10**30", "10**5000", "2**31", "2**63", "'a'", "b'a'", "()", "(1, 2)", "[]", "[[1], 2]", "{}",
    "{1: 2}", "{3}", "1j", "Odd()", "Odd", "NoText()", "NoHash()", "Index()", "Interface({})",
    "Interface(5)", "Interface({'data': None})", "Interface({'data': (16, 0), 'typestr': 'zz'})",
    "memoryview(b'ab')", "bytearray(3)", "range(3)", "iter(())", "sys", "...", "int", "tl.float16",
    "np.float32", "np.dtype('i4')", "tl.constexpr(3)", "combine", "np.float16(2)", "np.int8(3)",
    "np.uint64(4)", "np.bool_(1)", "np.longdouble(1)", "np.complex64(1)", "np.str_('a')",
    "np.datetime64(1, 's')", "ml_dtypes.bfloat16(2)", "np.array(3)", "np.zeros(0, np.float32)",
    "np.array(['a'])", "np.array([None])", "np.zeros(40, 'V3')", "np.zeros(40, np.complex64)",
    "np.zeros(40, '>f4')", "np.zeros(40, np.longdouble)", "np.zeros(40, 'M8[s]')",
    "np.zeros(40, ml_dtypes.int4)", "np.zeros(40, ml_dtypes.float8_e5m2)", "np.zeros((8, 8)).T",
    "np.float32(1e9)", "np.broadcast_to(np.float32(1), 40)", "np.matrix('1 2')", "object()",
    "tilec.TensorDescriptor(np.zeros((8, 8), np.float32), [8, 8], [8, 1], [4, 4])",
    "tilec.TensorDescriptor((1., 1., 1.), [8, 8], [8, 1], [4, 4])",
)
GRIDS = ("0", "(0,)", "(1,)", "(5, 0)", "(1, 1, 1, 1)", "()", "-1", "(2**31,)", "(2**63,)", "2**64",
         "(1, 65536)", "(1, 1, 65536)", "(1, -1)", "True", "(1.0,)", "'11'", "b'11'", "{1}",
         "[2, 1]", "np.int64(3)", "np.array([2, 1])", "np.array([1.5])", "(None,)", "None", "Odd()",
         "lambda meta: (2,)", "lambda meta: None", "(Index(),)", "(np.uint8(2), 1)", "10**5000")
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "debug", "launch_pdl", "find_boxes",
           "stream", "target")
GOOD_OPTIONS = ("num_warps=1", "num_warps=8", "num_stages=1", "debug=True", "debug=False",
                "find_boxes=False", "target='sm_80'", "target=90", "maxnreg=64", "stream=0",
                "stream=None", "num_warps=np.int64(2)", "launch_pdl=False")
KNOBS = ("run", "seed", "target", "cache", "cache_dir", "check", "verify", "interpret", "dump_dir",
         "time", "remarks", "override_dir")
KNOB_VALUES = ("''", "'0'", "'1'", "'x'", "-1", "3", "True", "None", "'/dev/null'", "'/proc/x'",
               "10**30", "1.5", "'tile'", "'ptx'", "'sm_75'", "'~nobody/x'", "'\\0'", "[]")
DTYPES = ("np.float32", "np.float16", "np.int32", "np.int8", "np.float64", "ml_dtypes.bfloat16")


@dataclass
class Case:
    """A launch as text: arguments by name, each an expression; odd: whether one of them is one that
    a launch may refuse."""

    kernel: str
    arguments: dict[str, str]
    grid: str
    options: list[str] = field(default_factory=list)
    knobs: dict[str, str] = field(default_factory=dict)
    level: str = "tile"
    odd: bool = False

    def call(self) -> str:
        """The launch, as a statement."""
        return f"{self.kernel}[{self.grid}]({', '.join([*self._arguments(), *self.options])})"

    def _arguments(self) -> Iterator[str]:
        for name, value in self.arguments.items():
            yield f"{name}={name}" if value and name[0].islower() else f"{name}={value}"

    def program(self) -> str:
        """A program that shows what came of it."""
        scope = ", ".join(f"{k}={v}" for k, v in {"run": repr(self.level), **self.knobs}.items())
        made = [f"{name} = {value}" for name, value in self.arguments.items() if name[0].islower()]
        return "\n".join([
            "import sys, ml_dtypes, numpy as np, tilec, tilec.language as tl",
            "from tests.fuzz.launches import *", KERNELS[self.kernel].source, *made,
            f"with tilec.knobs.scope({scope}):", f"    {self.call()}", "print(out)"])


# -- making -----------------------------------------------------------------------------------

class Generator:
    """Makes the cases of one seed."""

    def __init__(self, seed: int, index: int) -> None:
        self.random = np.random.default_rng([seed, index])

    def pick(self, values: Any) -> Any:
        """One of the values."""
        return values[int(self.random.integers(len(values)))]

    def array(self, dtype: str, size: int) -> str:
        """An array, or a view, of so many elements or more; small whole numbers."""
        base = f"(np.arange(%d) %% 7).astype({dtype})"
        views = [base % size, base % (size + 9) + f"[{self.pick((1, 2, 4))}:]",
                 base % (2 * size) + "[::2]", base % (size + 5) + "[::-1][:1]",
                 base % (2 * size) + f".reshape(2, {size})[0]", base % (size + 4) + "[2:-2]",
                 f"np.full({size}, 3, {dtype})", f"np.asfortranarray(np.full((2, {size}), 2, "
                 f"{dtype}))"]
        return str(self.pick(views if self.random.random() < 0.6 else views[:1]))

    def combine(self) -> Case:
        """Sums of two arrays."""
        n, width = int(self.random.integers(0, 40)), self.pick((4, 16))
        a, b, c = self.pick(DTYPES), self.pick(DTYPES[:3]), self.pick(DTYPES)
        out = f"np.full({max(n, 1)}, 99, {c})"
        return Case("combine", {
            "x": self.array(a, n + 1), "y": self.array(b, n + 1), "out": out, "n": str(n),
            "s": self.pick(("2", "3", "True", "-1", "1.5", "np.float32(2)", "np.int64(3)")),
            "B": str(width), "FLIP": self.pick(("True", "False"))},
            self.pick((f"({-(-n // width)},)", str(-(-n // width)),
                       "lambda meta: (tilec.cdiv(meta['n'], meta['B']),)")))

    def mark(self) -> Case:
        """A grid of three axes."""
        x, y, z = (int(v) for v in self.random.integers(1, 5, 3))
        width = self.pick((1, 4))
        return Case("mark", {
            "out": f"np.zeros({x * y * z * width}, {self.pick(DTYPES[:5])})", "width": str(x),
            "height": str(y), "first": str(int(self.random.integers(-50, 50))), "B": str(width)},
            self.pick((f"({x}, {y}, {z})", f"[{x}, {y}, np.int32({z})]")))

    def block(self) -> Case:
        """A block of a described tensor, which may lie partly outside."""
        rows, columns = (int(v) for v in self.random.integers(1, 9, 2))
        pitch, (r, c) = columns + int(self.random.integers(0, 3)), self.pick(((4, 4), (2, 8)))
        dtype = self.pick(("np.float32", "np.int32"))
        array = f"(np.arange({rows * pitch}) % 9).astype({dtype}).reshape({rows}, {pitch})"
        return Case("block", {
            "d": f"tilec.TensorDescriptor({array}, [{rows}, {columns}], [{pitch}, 1], [{r}, {c}])",
            "out": f"np.full(({r}, {c}), 77, {dtype})",
            "row": str(int(self.random.integers(-2, rows + 1))), "R": str(r), "C": str(c)}, "(1,)")

    def case(self) -> Case:
        """A launch; two in three have something odd."""
        made: Case = self.pick((self.combine, self.combine, self.mark, self.block))()
        made.level = self.pick(LEVELS)
        if self.random.random() < 0.3:
            made.options.append(self.pick(GOOD_OPTIONS))
        for change in (self._argument, self._grid, self._option, self._knob, self._form):
            if self.random.random() < 0.2:
                made.odd = True
                change(made)
        return made

    def _argument(self, made: Case) -> None:
        made.arguments[self.pick(list(made.arguments))] = self.pick(ANYTHING)

    def _grid(self, made: Case) -> None:
        made.grid = self.pick(GRIDS)

    def _option(self, made: Case) -> None:
        name = self.pick(OPTIONS)
        made.options = [f"{name}={self.pick(ANYTHING)}"]

    def _knob(self, made: Case) -> None:
        name = self.pick(KNOBS)
        made.knobs = {name: self.pick(KNOB_VALUES)}

    def _form(self, made: Case) -> None:
        match int(self.random.integers(4)):
            case 0:
                del made.arguments[self.pick(list(made.arguments))]
            case 1:
                made.options.append("odd=1")
            case 2:
                out = made.arguments.get("out", "None")
                made.arguments["out"] = f"locked({out})"
            case _:
                made.arguments["out"] = self.array(self.pick(DTYPES), 3)


def locked(array: Any) -> Any:
    """A view that must not be written, of an array; anything else as it is."""
    if not isinstance(array, np.ndarray):
        return array
    view = array[...]
    view.flags.writeable = False
    return view


# -- meaning ----------------------------------------------------------------------------------

REFUSED, OWN = "refused", "the author's own error"
FINE = ("ran", REFUSED, OWN)


def memory(array: Any) -> Any:
    """The elements from the first one of an array to the end of what is behind it."""
    start, end = array.ctypes.data, storage_of(array)[1]
    size = (end - start) // array.itemsize * array.itemsize
    raw = (ctypes.c_uint8 * size).from_address(start)
    return np.frombuffer(raw, np.uint8).view(array.dtype)


def plain(value: Any) -> bool:
    """Whether a value is an array of numbers that there are types for."""
    return type(value) is np.ndarray and value.size > 0 and value.dtype in known()


def known() -> list[Any]:
    """Dtypes whose sums are checked."""
    return [np.dtype(eval(dtype)) for dtype in DTYPES]


def meaning(case: Case, given: dict[str, Any], grid: Any) -> Any:
    """What the kernel leaves in `out`, REFUSED, or None where nothing is said of it."""
    if case.options and case.odd or case.kernel != "combine" and case.odd:
        return None
    if case.kernel == "mark":
        x, y, z = (int(n) for n in grid)
        at = np.indices((z, y, x))
        want = given["first"] + at[2] + 5 * at[1] + 7 * at[0]
        return np.repeat(want.ravel(), given["B"]).astype(given["out"].dtype)
    if case.kernel == "block":
        tensor, want = given["d"].as_numpy(), np.zeros_like(given["out"])
        for i, j in np.ndindex(want.shape):
            row, column = given["row"] + i, j + 1
            if 0 <= row < tensor.shape[0] and column < tensor.shape[1]:
                want[i, j] = tensor[row, column]
        return want
    x, y, out, n, s = (given.get(name) for name in ("x", "y", "out", "n", "s"))
    width, flip = given.get("B"), given.get("FLIP", False)
    count_kinds = (int, np.int64)
    if not (plain(x) and plain(y) and plain(out) and type(n) is int and type(width) is int and
            type(flip) is bool and type(s) in (int, bool, float, np.float32, np.int64)):
        return None
    grid = grid(given) if callable(grid) else grid
    grid = (grid,) if type(grid) in count_kinds else grid
    if not isinstance(grid, tuple) or len(grid) != 1 or type(grid[0]) not in count_kinds:
        return None
    if not (0 < width <= 64 and 0 <= grid[0] < 100 and abs(n) < 100 and abs(s) < EXACT):
        return None
    count = max(0, min(n, grid[0] * width))
    if count == 0:
        return out.copy()
    if count > min(len(memory(v)) for v in (x, y, out)) or not out.flags.writeable:
        return REFUSED
    value = memory(x)[:count].astype(np.float64) + memory(y)[:count].astype(np.float64) * float(s)
    want = -value if flip else value
    narrow = any(v.dtype == np.int8 for v in (x, y, out))  # which wraps
    if (abs(want) >= (100 if narrow else EXACT)).any() or (want != np.trunc(want)).any():
        return None
    if count > out.size or not out.flags.c_contiguous:
        return None
    after = out.copy()
    after.reshape(-1)[:count] = want.astype(out.dtype)
    return after


# -- running ----------------------------------------------------------------------------------

def evaluated(case: Case) -> tuple[dict[str, Any], Any]:
    """The arguments and the grid; AttributeError and the like where an expression has none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy about what is made here, no launch's
        return {name: eval(text, globals()) for name, text in case.arguments.items()}, \
            eval(case.grid, globals())


def launched(case: Case, level: str) -> tuple[str, Any, str]:
    """What came of the launch: "ran" and `out`, "refused", or a fault with its text."""
    try:
        given, grid = evaluated(case)
    except TilecError:
        return REFUSED, None, ""  # a descriptor that cannot be
    want = meaning(case, given, grid)
    before = given["out"].copy() if plain(given.get("out")) else None
    try:
        options = eval(f"dict({', '.join(case.options)})", globals())
        with contextlib.ExitStack() as around:
            around.enter_context(knobs.scope(run=level))
            around.enter_context(knobs.scope(**{k: eval(v, globals())
                                                for k, v in case.knobs.items()}))
            KERNELS[case.kernel][grid](**given, **options)
    except InternalError as e:
        return "internal error", None, str(e)
    except TilecError as e:
        if not case.odd and want is not REFUSED:
            return "refused, though right", None, str(e)
        kept = before is None or (given["out"] == before).all()
        return (REFUSED, None, "") if kept or case.kernel == "mark" or case.odd else \
            ("refused after it had written", None, str(e))
    except Exception as e:
        frames = traceback.extract_tb(e.__traceback__)  # of the grid function, an expression here
        own = any(frame.filename == "<string>" for frame in frames)
        return OWN if own else "traceback", None, traceback.format_exc()
    out = given.get("out")
    if want is REFUSED:
        return "ran, outside of memory", None, f"{out}"
    if want is not None and not np.array_equal(out, want):
        return "wrong result", None, f"{out}, expected {want}"
    return "ran", out if isinstance(out, np.ndarray) else None, ""


def outcome(case: Case) -> tuple[str, str]:
    """How a case counts, and what is wrong with it."""
    kind, out, text = launched(case, case.level)
    if kind != "ran" or out is None:
        return kind, text
    other = LEVELS[case.level == LEVELS[0]]
    if case.knobs or case.odd and case.kernel == "mark":  # whose programs may then write one place
        return "ran", ""
    again, there, text = launched(case, other)
    if again not in FINE:
        return again, f"at level {other}: {text}"
    same = again == "ran" and there.tobytes() == out.tobytes()
    return ("ran", "") if same else ("levels differ", f"{out} at {case.level}, {there} at {other}")


def work(seed: int, first: int, count: int, write: int) -> None:
    """Run cases in this process, a line of JSON for each."""
    for index in range(first, first + count):
        try:
            kind, text = outcome(Generator(seed, index).case())
        except Exception:
            kind, text = "the fuzzer failed", traceback.format_exc()
        os.write(write, json.dumps([kind, text[:2000]]).encode() + b"\n")


def isolated(seed: int, cases: int) -> Iterator[tuple[int, str, str]]:
    """(index, kind, text) of every case, run in children that may end or hang."""
    done = 0
    while done < cases:
        read, write = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                os.close(read)
                with open(os.devnull, "w") as sink:
                    os.dup2(sink.fileno(), 2)
                    os.dup2(sink.fileno(), 1)
                with tempfile.TemporaryDirectory() as folder:  # for what flags name as folders
                    os.chdir(folder)
                    work(seed, done, cases - done, write)
                code = 0
            os._exit(code)
        os.close(write)
        with open(read, "rb", buffering=0) as lines:
            while done < cases:
                if not select.select([lines], [], [], LIMIT_S)[0]:
                    os.kill(child, signal.SIGKILL)
                    yield done, "hang", ""
                    done += 1
                    break
                line = lines.readline()
                if not line:
                    yield done, "process ended", ""
                    done += 1
                    break
                yield done, *json.loads(line)
                done += 1
        os.waitpid(child, 0)


def report(seed: int, cases: int) -> int:
    """Run the cases and print the table and every failure; how many failures there were."""
    counts: Counter[str] = Counter()
    for index, kind, text in isolated(seed, cases):
        counts[kind] += 1
        if kind not in FINE:
            case = Generator(seed, index).case()
            print(f"# case {index} of seed {seed}: {kind}\n# " + text.replace("\n", "\n# "))
            print(case.program(), end="\n\n", flush=True)
    print(f"| {cases} launches, seed {seed} | |\n|---|---|")
    for kind, count in counts.most_common():
        print(f"| {kind} | {count} |")
    return cases - sum(counts[kind] for kind in FINE)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    return int(report(args.seed, args.cases) > 0)


if __name__ == "__main__":
    sys.exit(main())
