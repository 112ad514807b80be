"""Inputs of a kernel made from its signature alone: seeded arrays and numbers that a run accepts.

Nobody says how large an array is that `a_ptr + i * stride` reaches into. So numbers are small, and
arrays larger than small numbers reach; what a module does not accept (an `assume` that does not
hold, an access beyond an array, a wait that nobody ends) is drawn again.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilec.errors import InterpreterError, LaunchError
from tilec.eval.dtypes import Array, dtype_of
from tilec.interp.frame import Data, Frame
from tilec.interp.machine import Observer
from tilec.interp.run import run
from tilec.ir import ops
from tilec.ir.core import Func, Module, Op, Value
from tilec.ir.origins import walk_back
from tilec.ir.tensor_maps import recipes
from tilec.ir.types import Pointer, Scalar, TensorMap
from tilec.runtime.maps import Grid, makers

ELEMENTS, MOST_ELEMENTS = 1 << 15, 1 << 23  # of an array
TRIES, MAP_TRIES = 60, 400
PERIOD = 4099  # an array repeats what so many elements hold: a prime, as no stride is
NUMBERS = (1, 2, 3, 5, 8, 13, 21, 40, 64, 100, 150, 333)
LARGEST = max(NUMBERS)
ROUNDS = (5,)  # of loops: more than a pipeline has stages
Outcome = tuple[list[Any], list[str]]  # the arguments after a run, and what it printed
TOO_MUCH = "it does not end"
PRINTING = 400  # ops that printing a tile takes the time of


class Inputs(NamedTuple):
    """What a launch passes. args: in the order of the author's parameters. seed: of the order of
    programs, and of when copies land."""

    args: Sequence[Any]
    grid: Grid
    seed: int | None = 0

    def copied(self) -> list[Any]:
        """The arguments, with copies of the arrays that lie at the beginning of a page: two runs
        compute the same addresses."""
        return [_at_a_page(a) if isinstance(a, np.ndarray) and a.size else a for a in self.args]

    def maps(self, func: Func, args: Sequence[Any]) -> list[Any]:
        """The tensor maps that the launch adds. Raises LaunchError where none can be made."""
        return [maker.on_host(args, self.grid) for maker in makers(recipes(func))]


def _at_a_page(array: Array) -> Array:
    copy = np.frombuffer(mmap.mmap(-1, array.nbytes), array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class Unmet(Exception):
    """No input was found that a module accepts; str() says what was wrong with the last one."""


class Budget:
    """Ends a run that does too much: an op counts as one, and one more for every 1024 elements."""

    def __init__(self, most: int) -> None:
        self.left = most

    def __call__(self, op: Op, frame: Frame, out: Sequence[Data] | None) -> None:
        """Count an op that has run."""
        self.left -= 1 + sum(array.size for array, _ in out or ()) // 1024
        if "io" in op.class_effects:
            self.left -= PRINTING
        if self.left < 0:
            raise InterpreterError(TOO_MUCH, op.loc)


def run_on(module: Module, func: str, inputs: Inputs, observe: Observer | None = None,
           seed: int | None = None) -> Outcome:
    """The arguments after a run, and what it prints. Raises LaunchError and InterpreterError."""
    return _run(module, func, inputs, [None], inputs.seed if seed is None else seed, observe)


def run_in_order(module: Module, func: str, inputs: Inputs, backwards: bool) -> Outcome:
    """What `run_on` gives where one program, or cluster of them, runs after the other. Raises
    InterpreterError where they wait for each other."""
    x, y, z = inputs.grid
    programs = [(i, j, k) for k in range(z) for j in range(y) for i in range(0, x, module.num_ctas)]
    return _run(module, func, inputs, programs[::-1] if backwards else programs, inputs.seed, None)


def _run(module: Module, func: str, inputs: Inputs, programs: Sequence[tuple[int, int, int] | None],
         seed: int | None, observe: Observer | None) -> Outcome:
    args, printed = inputs.copied(), list[str]()
    maps = inputs.maps(next(f for f in module.funcs if f.name == func), args)
    for program in programs:
        run(module, func, [*args, *maps], inputs.grid, seed, program=program,
            on_print=printed.append, observe=observe, notes=False)
    return args, printed


def inputs_for(module: Module, func: Func, seed: int, most: int
               ) -> tuple[Inputs, Outcome]:
    """Inputs that `func` accepts within such a budget, and what `run_on` gives for them; other
    seeds give others. Raises Unmet."""
    elements, why = ELEMENTS, "no tensor map can be made of it"
    start, failed = most, 0
    for drawn in _with_maps(module, func, seed):
        inputs = drawn._replace(args=[_array(a, elements) for a in drawn.args])
        try:
            return inputs, run_on(module, func.name, inputs, Budget(most))
        except (InterpreterError, LaunchError) as e:
            why = str(e)
            if " past " in why or " outside of " in why:
                elements = min(4 * elements, MOST_ELEMENTS)
            if TOO_MUCH in why:
                failed += 1  # what no number makes smaller is given more
                most += start if failed % 5 == 0 else 0
    raise Unmet(why)


def _with_maps(module: Module, func: Func, seed: int) -> Iterator[Inputs]:
    """Up to TRIES draws of which the tensor maps that the function needs can be made."""
    found = 0
    for attempt in range(MAP_TRIES):
        # Every other input has long loops, the first one among them.
        bounds = _bounds(func) if (seed + attempt) % 2 == 0 else {}
        inputs = _draw(module, func, bounds, np.random.default_rng((seed, attempt)))
        try:
            inputs.maps(func, [_array(a, ELEMENTS) for a in inputs.args] if recipes(func) else ())
        except LaunchError:
            continue
        yield inputs
        found += 1
        if found == TRIES:
            return


class _Content(NamedTuple):
    """What an array repeats, its shape if it has one."""

    period: Array
    shape: tuple[int, ...] = ()


def _array(drawn: Any, elements: int) -> Any:
    if not isinstance(drawn, _Content):
        return drawn
    return np.resize(drawn.period, drawn.shape or (elements,))


def _bounds(func: Func) -> dict[Value, int]:
    """Parameters that the ends of loops are computed from, and what a round more takes of each."""
    found: dict[Value, int] = {}
    for loop in func.walk():
        if not isinstance(loop, ops.For):
            continue
        size = _constant(loop.step)
        for v in walk_back(loop.hi):
            if isinstance(v.op, ops.Div):
                size *= _constant(v.op.rhs)
            if v in func.args:
                found[v] = max(size, found.get(v, 1))
    return found


def _constant(v: Value) -> int:
    value = v.op.value if isinstance(v.op, ops.Constant) else 1
    return max(value, 1) if isinstance(value, int) else 1


def _draw(module: Module, func: Func, bounds: Mapping[Value, int], rng: np.random.Generator
          ) -> Inputs:
    axes = {op.axis for op in func.walk() if isinstance(op, (ops.ProgramId, ops.NumPrograms))}
    x, y, z = (2 if axis in axes else 1 for axis in range(3))
    args = [_draw_one(a.type, attributes.get("divisibility", 1), bounds.get(a, 0), rng)
            for a, attributes in zip(func.args, func.arg_attrs, strict=True)
            if "base" not in attributes]
    return Inputs(args, (x * module.num_ctas, y, z))


def _draw_one(t: Any, divisor: int, round_size: int, rng: np.random.Generator) -> Any:
    if isinstance(t, TensorMap):
        shape = tuple(n * int(rng.integers(1, 3)) for n in t.shape)
        return _Content(_elements(t.element, rng), shape)
    if isinstance(t, Pointer):
        return _Content(_elements(t.pointee, rng))
    assert isinstance(t, Scalar)
    if t.is_bool:
        return bool(rng.integers(2))
    if t.is_float:
        return float(rng.normal())
    limit = int(np.iinfo(dtype_of(t)).max) // divisor
    long = [n for r in ROUNDS if (n := -(-r * round_size // divisor)) <= limit]
    if round_size and long:
        return divisor * int(rng.choice(long))
    most = min(limit, max(LARGEST, divisor) // divisor)
    return divisor * int(rng.choice([n for n in NUMBERS if n <= most]))


def _elements(t: Scalar, rng: np.random.Generator) -> Array:
    """Floats are normally distributed; wide integers often small, since they may be indices, or
    zeros, since they may be locks."""
    dtype = dtype_of(t)
    if t.is_float:
        return rng.normal(size=PERIOD).astype(dtype)
    if t.is_bool:
        return rng.integers(0, 2, PERIOD).astype(dtype)
    limits = np.iinfo(dtype)
    kind = 2 if t.bits < 32 else int(rng.choice(3, p=(0.6, 0.2, 0.2)))
    low, high = ((0, 13), (0, 1), (int(limits.min), int(limits.max)))[kind]
    return rng.integers(low, high, PERIOD, dtype=dtype)
