"""Runs a kernel over a grid on the CPU, at the tile, gpu or lowered level.

Programs run in seeded random order: in groups along numpy's leading axis while nothing passes
between them, one by one otherwise, in turns where they may wait for each other.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tilec import knobs
from tilec.errors import BRIEF, InterpreterError, LaunchError, shown
from tilec.eval.casts import rounded
from tilec.eval.dtypes import BOOL, Array, dtype_of, scalar_type
from tilec.eval.ring import IN_RING
from tilec.eval.rules import PLAIN
from tilec.interp import (  # noqa: F401  (they register rules)
    cluster,
    control,
    descriptors,
    effects,
    hopper,
    named_barriers,
    roles,
    shared,
)
from tilec.interp.debugger import Debugger
from tilec.interp.frame import Data
from tilec.interp.machine import Machine, Observer
from tilec.interp.memory import Allocation, Memory
from tilec.interp.notes import report_gaps, report_grid, report_loops, report_meeting, watch_views
from tilec.interp.numbers import Watch
from tilec.interp.ring_memory import RingMemory
from tilec.interp.touches import Conflict, Touches
from tilec.interp.waiting import Turns
from tilec.ir import ops
from tilec.ir.clusters import check_clusters
from tilec.ir.core import Func, Module, Op
from tilec.ir.grids import extents_of
from tilec.ir.ops.hopper import TmaOp
from tilec.ir.ops.memory import MemoryOp
from tilec.ir.origins import accessed, pointer_roots, walk_back
from tilec.ir.spelling import as_authors_say
from tilec.ir.types import Pointer, Scalar, TensorMap, shape_of

# Elements of the largest tile that a group of programs holds together: its arrays fit in a cache.
GROUP_ELEMENTS = 1 << 16
PIECE = 1 << 20  # programs whose order is held at a time, a multiple of every cluster's


@BRIEF
def run(module: Module, func_name: str, args: Sequence[Any] | Mapping[str, Any],
        grid: int | Sequence[int], seed: int | None = None, level: str | None = None,
        program: int | Sequence[int] | None = None,
        on_print: Callable[[str], None] | None = None, observe: Observer | None = None,
        notes: bool = True) -> None:
    """Run `func_name` over `grid` (1 to 3 extents), writing to the arrays in `args`.

    args: numpy arrays for pointers and tensor maps, and Python or numpy scalars, in the parameters'
    order or by name. seed: of the order of programs and of when asynchronous copies land (default:
    TILEC_SEED). level: what the module's level must be, if given. program: run this one only, with
    the others of its cluster if these work together.
    on_print: gets each printed line (default: stdout). observe: called after every op, with the
    values of its results. notes: whether what is likely a mistake is told.
    Raises LaunchError for arguments that do not fit and InterpreterError for what a program does
    wrong.
    """
    if level is not None and level != module.level:
        raise LaunchError(f"the module is at level {module.level}, expected {level}")
    func = _find(module, func_name)
    extents = extents_of(grid)
    arrays, scalars = _bind(func, args)
    check_clusters(func_name, extents, module.num_ctas)
    in_ring = knobs.eval == "ring"
    memory = RingMemory(arrays) if in_ring else Memory(arrays)
    _check_attributes(func, memory, scalars)
    numbers = IN_RING if in_ring else PLAIN
    arguments = [(numbers.number(array), poison) for array, poison in
                 _arguments(func, memory, scalars)]
    seed = knobs.seed if seed is None else seed
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise LaunchError(f"seed is {shown(seed)}, expected an integer of 0 or more")
    order = Order(prod(extents), seed) if program is None else \
        Order(1, seed, _linear(program, extents))
    emit = on_print or (lambda text: print(text, file=sys.stdout))
    machine = Machine(func, memory, scalars, extents, emit, module.level == "lowered", seed,
                      module.num_warps, module.num_ctas)
    machine.numbers, machine.observe, machine.notes = numbers, observe, notes
    machine.maps = {p: arrays[p.name or str(i)] for i, p in enumerate(func.args)
                    if isinstance(p.type, TensorMap)}
    machine.watch = Watch(machine) if notes and not in_ring else None
    launch = _Launch(machine, arguments)
    for allocation in memory.allocations:
        watch_views(machine, allocation, module.level == "tile" and allocation in launch.written)
    try:
        launch.run(order)
        memory.finish()
    except InterpreterError as e:
        if module.level == "tile" and e.loc is not None:  # a kernel's line, not one of text
            e.message, e.advice = as_authors_say(e.message), as_authors_say(e.advice)
        raise


class Order:
    """Programs in seeded random order, as arrays of at most PIECE: large grids are shuffled piece
    by piece, the pieces taken in turn from a random one on. first: the least of the programs."""

    def __init__(self, count: int, seed: int, first: int = 0) -> None:
        self.count, self.seed, self.first = count, seed, first

    def __iter__(self) -> Iterator[Array]:
        random = np.random.default_rng(self.seed)
        if self.count <= PIECE:
            yield self.first + random.permutation(self.count)
            return
        pieces = -(-self.count // PIECE)
        turn = int(random.integers(pieces))
        for i in range(pieces):
            start = (turn + i) % pieces * PIECE
            yield self.first + start + random.permutation(min(PIECE, self.count - start))


class _Launch:
    """Decides how the programs of one launch are grouped, and runs them."""

    def __init__(self, machine: Machine, arguments: Sequence[Data]) -> None:
        self.machine, self.arguments = machine, arguments
        self.func, self.memory, self.emit = machine.func, machine.memory, machine.emit
        self.printed: list[str] = []
        self.body = list(self.func.walk())
        self.written = self._touched("write", self.body)
        if any(isinstance(op, ops.Breakpoint) for op in self.body):
            machine.debugger = Debugger(machine.program_name)

    def run(self, order: Order) -> None:
        """Run the programs in `order`, in groups if they turn out to be independent."""
        both, written = self._shared(), self.written
        try:
            if self._may_wait() or self._work_together():
                self._record(written, races=False)
                self._in_turns(order)
            elif self._must_be_alone() or order.count == 1:
                races = order.count > 1 and not self._synchronise()
                self._record(written, both if races else set(), races=races)
                self._groups(order, 1)
            else:
                self._in_groups(order, both, written)
            report_loops(self.machine, self.body,
                         lambda load: not self._touched("read", [load]) & self.written)
            if order.count == prod(self.machine.grid):
                report_grid(self.machine, self.body)
                self._look_for_gaps(written)
        finally:
            for allocation in written:
                allocation.touches = None

    def _in_groups(self, order: Order, both: set[Allocation], written: set[Allocation]) -> None:
        saved = [(a, a.raw[a.core].copy()) for a in written] if both else []
        self._record(written, both, together=True)
        try:
            self._groups(order, self._group_size())
        except Conflict:
            self.printed.clear()
            for allocation, content in saved:
                allocation.raw[allocation.core] = content
            self._record(written, both)
            self._groups(order, 1)

    def _record(self, written: set[Allocation], both: Container[Allocation] = (),
                together: bool = False, races: bool = True) -> None:
        """Keep from now on who touches what."""
        for a in written:
            a.touches = Touches(a.elements,
                                functools.partial(report_meeting, self.machine, a), together,
                                a in both, races)

    def _look_for_gaps(self, written: set[Allocation]) -> None:
        """Elements left out are worth a word, unless the kernel reads the array, too, or what it
        loads, or a descriptor, says which it writes."""
        blocks = [op for op in self.body if isinstance(op, (ops.DescriptorOp, ops.TmaStore))]
        read = self._touched("read", self.body) | self._touched("write", blocks)
        scattered = any("write" in op.class_effects and any(
            isinstance(v.op, MemoryOp) for pointer in [accessed(op)] if pointer is not None
            for v in walk_back(pointer)) for op in self.body)
        for allocation in () if scattered else written - read:
            report_gaps(self.machine, allocation)

    def _groups(self, order: Iterable[Array], size: int) -> None:
        self.machine.emit = self.printed.append if size > 1 else self.emit
        try:
            for piece in order:
                for i in range(0, len(piece), size):
                    self.machine.run(piece[i:i + size], self.arguments)
        except InterpreterError:
            self._flush()
            raise
        self._flush()

    def _in_turns(self, order: Iterable[Array]) -> None:
        self.memory.count_changes = True
        self.machine.emit = self.emit
        if self._work_together():
            cluster.run_clusters(self.machine, order, self.arguments, self._may_wait())
            return
        turns = Turns(self.machine.program_name, lambda: self.memory.changes)
        self.machine.turns = turns
        programs = (n for piece in order for n in piece.tolist())
        turns.run(programs, lambda program: self.machine.fork().run(
            np.array([program]), self.arguments))

    def _may_wait(self) -> bool:
        """Whether a `while` reads memory that the kernel writes: it may wait for a program."""
        inside = [op for loop in self.body if isinstance(loop, ops.While) for op in loop.walk()]
        return self.machine.debugger is None and \
            bool(self._touched("read", inside) & self.written)

    def _work_together(self) -> bool:
        """Whether the programs of a cluster have to do with each other."""
        return any(isinstance(op, (ops.ClusterBarrier, ops.RemoteLoad, ops.RemoteArrive,
                                   ops.TmaMulticast)) for op in self.body)

    def _flush(self) -> None:
        for text in self.printed:
            self.emit(text)
        self.printed.clear()

    def _must_be_alone(self) -> bool:
        return self.machine.debugger is not None or self._synchronise() or any(
            isinstance(op, ops.WarpSpecialize) for op in self.body)

    def _synchronise(self) -> bool:
        """Whether programs may order what they do by atomics."""
        return any(isinstance(op, ops.Atomic) and op.result.uses for op in self.body)

    def _group_size(self) -> int:
        tiles = [prod(shape_of(v.type)) for op in self.body for v in op.results]
        return max(1, GROUP_ELEMENTS // max(tiles, default=1))

    def _touched(self, effect: str, body: Sequence[Op]) -> set[Allocation]:
        """Allocations that ops in `body` with this effect may touch."""
        out: set[Allocation] = set()
        for op in body:
            pointer = op.map if isinstance(op, TmaOp) else accessed(op)
            if pointer is None or effect not in op.class_effects:
                continue
            roots = [pointer] if isinstance(op, TmaOp) else pointer_roots(pointer, self.func)
            if roots is None:
                return set(self.memory.allocations)
            out |= {self.memory.allocation_of(r.name or str(r.index)) for r in roots}
        return out

    def _shared(self) -> set[Allocation]:
        """Allocations both read and written: where programs might depend on each other."""
        only_atomics = all("write" in op.class_effects for op in self.body
                           if accessed(op) is not None)
        return set() if only_atomics else self._touched("read", self.body) & self.written


def _find(module: Module, name: str) -> Func:
    for func in module.funcs:
        if func.name == name:
            return func
    known = ", ".join(f.name for f in module.funcs)
    raise LaunchError(f"there is no function {name}; the module has {known}")


def _linear(program: int | Sequence[int], grid: tuple[int, ...]) -> int:
    index = (program,) if isinstance(program, int) else tuple(program)
    index += (0,) * (len(grid) - len(index))
    if len(index) != len(grid) or any(not 0 <= i < g for i, g in zip(index, grid, strict=True)):
        raise LaunchError(f"program {program!r} is not in the grid {grid}")
    return int(sum(i * prod(grid[:axis]) for axis, i in enumerate(index)))


def _bind(func: Func, args: Sequence[Any] | Mapping[str, Any],
          ) -> tuple[dict[str, Array], dict[str, Any]]:
    """Arrays and scalars by parameter name, checked against the parameters' types."""
    names = [a.name or str(i) for i, a in enumerate(func.args)]
    if isinstance(args, Mapping):
        missing = [n for n in names if n not in args]
        if missing:
            raise LaunchError(f"{func.name} misses the argument {missing[0]}", None,
                              "give one for each parameter")
        args = [args[n] for n in names]
    if len(args) != len(names):
        raise LaunchError(f"{func.name} takes {len(names)} arguments ({', '.join(names)}), "
                          f"{len(args)} were given", None, "pass them in this order")
    arrays: dict[str, Array] = {}
    scalars: dict[str, Any] = {}
    for name, parameter, given in zip(names, func.args, args, strict=True):
        if isinstance(parameter.type, Pointer):
            arrays[name] = _array(name, parameter.type.pointee, given)
        elif isinstance(parameter.type, TensorMap):
            arrays[name] = _tensor(name, parameter.type, given)
        else:
            if not isinstance(parameter.type, Scalar):
                raise LaunchError(f"parameter {name} is {parameter.type}: kernels are launched "
                                  "with numbers, pointers and tensor maps")
            scalars[name] = _scalar(name, parameter.type, given)
    return arrays, scalars


def _check_attributes(func: Func, memory: Memory, scalars: dict[str, Any]) -> None:
    """What the module was specialised on must hold of the arguments too."""
    for i, (parameter, attributes) in enumerate(zip(func.args, func.arg_attrs, strict=True)):
        name = parameter.name or str(i)
        divisor = attributes.get("divisibility", 1)
        value = memory.address[name] if name in memory.address else scalars[name]
        if divisor > 1 and value % divisor:
            shown = "an array" if name in memory.address else value
            raise LaunchError(f"argument {name} is {shown} that is not a multiple of {divisor}, "
                              f"which {func.name} was compiled for",
                              advice="compile it for these arguments")


def _tensor(name: str, t: TensorMap, given: Any) -> Array:
    array = _array(name, t.element, given)
    if array.ndim != len(t.shape):
        raise LaunchError(f"argument {name} has the shape {array.shape}, expected "
                          f"{len(t.shape)} dimensions", None,
                          "reshape it, or change the blocks that the kernel copies")
    return array


def _array(name: str, t: Scalar, given: Any) -> Array:
    if not isinstance(given, np.ndarray):
        raise LaunchError(f"argument {name} is {type(given).__name__}, expected a numpy array",
                          None, "numpy.asarray makes one of most things")
    want = dtype_of(t)
    if given.dtype != want and not (want == BOOL and given.dtype.itemsize == 1):
        try:
            have = scalar_type(given.dtype).name
        except KeyError:
            have = str(given.dtype)
        raise LaunchError(f"argument {name} holds {have}, expected {t}", None,
                          f"convert the array, or compile the kernel for {have}")
    return given


def _scalar(name: str, t: Scalar, given: Any) -> Any:
    value = given.item() if getattr(given, "size", 0) == 1 else given
    if not isinstance(value, (bool, int, float)):
        raise LaunchError(f"argument {name} is {type(given).__name__}, expected {t}", None,
                          "pass a number")
    if t.is_bool:
        return bool(value)
    if t.is_float and (isinstance(value, float) or abs(value) < 1 << 1023):
        return float(value)
    if t.is_float or isinstance(value, float) or not _holds(t, value):
        raise LaunchError(f"argument {name} is {value!r}, which does not fit {t}", None,
                          "compile the kernel for a wider type")
    return int(value)


def _holds(t: Scalar, value: int) -> bool:
    info = np.iinfo(dtype_of(t))
    return info.min <= value <= info.max


def _arguments(func: Func, memory: Memory, scalars: dict[str, Any]) -> list[Data]:
    out: list[Data] = []
    for i, parameter in enumerate(func.args):
        name = parameter.name or str(i)
        if isinstance(parameter.type, Pointer | TensorMap):
            out.append((np.array([memory.address[name]], np.int64), None))
        else:
            assert isinstance(parameter.type, Scalar)
            out.append((rounded(scalars[name], parameter.type).reshape(1), None))
    return out
