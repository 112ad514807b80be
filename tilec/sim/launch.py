"""Runs a kernel over a grid: arguments into simulated memory, its CTAs, results back."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilec.errors import BRIEF
from tilec.sim import instructions  # noqa: F401  (its modules register the rules)
from tilec.sim.banks import OnShared
from tilec.sim.counters import Counts
from tilec.sim.decode import Decoder
from tilec.sim.errors import SimError
from tilec.sim.grid import Grid, Launch
from tilec.sim.memory import GLOBAL_BASE, Allocation, host_bytes, place
from tilec.sim.parser import parse
from tilec.sim.ptx import TYPE_BYTES, Kernel, Module, Variable
from tilec.sim.tensormap import MAP_BYTES, Box, TensorMap, handle

Array = np.ndarray[Any, Any]
MAX_STEPS = 2_000_000
MAX_GRID = ((1 << 31) - 1, 65535, 65535)  # CUDA C++ Programming Guide, "Compute Capabilities"


@BRIEF
def run(ptx: str | Module, kernel: str, args: Sequence[Any], grid: tuple[int, int, int],
        block: int | None = None, shared_bytes: int = 0, seed: int | None = None,
        max_steps: int = MAX_STEPS, on_print: Callable[[str], None] | None = None,
        names: Sequence[str] = (), on_shared: OnShared | None = None,
        check: bool = False, count: bool = False) -> Counts | None:
    """Run one kernel over `grid`, changing array arguments in place.

    `args` holds numpy arrays for pointers (contiguous or views: the kernel gets the address of the
    first element, in an allocation that covers the view's base buffer), numbers for scalars, bytes
    for by-value structs, a TensorMap for 128 of them, None for a null pointer,
    an AllocationEdge for where the memory of another one begins or ends. `block` is the
    number of threads, by default what `.reqntid` says; `shared_bytes` is dynamic shared memory.
    With a `seed` CTAs run in random order, warps and atomics too; without, in order. `max_steps`
    bounds the jumps of one CTA, or one cluster of them.
    `on_print` gets the text of each printf; `names` are what messages call the arguments.
    `on_shared` gets the wavefronts of every ld, st, ldmatrix, stmatrix and cp.async that reaches
    shared memory (see sim/banks.py). `check` reports races and uses of uninitialised values, too
    (docs/simulator.md). With `count` what it cost is returned.
    Module variables start from their initial values in every run; when it fails, array arguments
    keep what they held before.
    Raises SimError for a bad argument, for PTX that cannot be read, and for what a GPU would not
    let pass: bad addresses, deadlock, traps, failed assertions.
    """
    module = parse(ptx) if isinstance(ptx, str) else ptx
    if kernel not in module.kernels:
        names = ", ".join(sorted(module.kernels)) or "none"
        raise SimError(f"no kernel '{kernel}' in this PTX; it has: {names}")
    if seed is not None and (not isinstance(seed, (int, np.integer)) or seed < 0):
        raise SimError(f"seed is {seed!r:.80}, expected an integer of 0 or more")
    entry = module.kernels[kernel]
    threads = _threads(entry, block)
    _check_grid(grid)
    if any(count % size for count, size in zip(grid, entry.cluster, strict=True)):
        raise SimError(f"a grid of {grid} CTAs does not consist of clusters of {entry.cluster}, "
                       f"which kernel '{kernel}' asks for")
    if math.prod(entry.cluster) > 16:
        raise SimError(f"kernel '{kernel}' asks for clusters of {entry.cluster} CTAs: 16 at most")
    with np.errstate(all="ignore"):
        # Kept with the module, so that repeated launches decode once.
        key = (kernel, threads, check, count)
        decoder = module.decoded.get(key)
        if decoder is None:
            decoder = module.decoded[key] = Decoder(module, entry, threads, check, count)
        decoder.on_print = on_print or functools.partial(print, end="")
        decoder.on_shared = on_shared
        allocations = _bind(decoder, entry, args, names)
        try:
            Grid(decoder, Launch(entry, grid, threads, shared_bytes, seed, max_steps)).run()
            _write_back(decoder, allocations)
        finally:
            decoder.arena.resize(0)  # the decoded kernel is kept; a copy of its data need not be
    return None if decoder.counters is None else decoder.counters.report(kernel)


def unsupported(ptx: str | Module) -> list[SimError]:
    """Every instruction of the text that would raise when executed, each with its line."""
    module = parse(ptx) if isinstance(ptx, str) else ptx
    found = []
    for kernel in module.kernels.values():
        with np.errstate(all="ignore"):
            found += Decoder(module, kernel, 32).unsupported
    return found


def _threads(kernel: Kernel, block: int | None) -> int:
    required = math.prod(kernel.reqntid) if kernel.reqntid is not None else None
    block = required if block is None else block
    if block is None:
        raise SimError(f"kernel '{kernel.name}' has no .reqntid: give block=")
    if required is not None and block != required:
        raise SimError(f"block={block}, but kernel '{kernel.name}' has .reqntid {required}")
    if not 1 <= block <= 1024:
        raise SimError(f"block={block}: a CTA has 1 to 1024 threads")
    return block


class AllocationEdge(NamedTuple):
    """An argument that is the address where the allocation of another one, an array, begins, or
    where it ends; of what is no array, the whole of memory."""

    argument: int
    end: bool

    def address(self, found: Mapping[int, tuple[Allocation, int]]) -> int:
        """The address; found: allocation and first address of the arguments that are arrays."""
        if self.argument not in found:
            return (1 << 63) - 1 if self.end else 0
        allocation, _ = found[self.argument]
        return allocation.start + (allocation.size if self.end else 0)


def _bind(decoder: Decoder, kernel: Kernel, args: Sequence[Any],
          names: Sequence[str]) -> list[Allocation]:
    """Write parameters and copy array arguments into the arena; returns their allocations."""
    if len(args) != len(kernel.params):
        raise SimError(
            f"kernel '{kernel.name}' takes {len(kernel.params)} arguments, {len(args)} given")
    arena = decoder.arena
    arena.truncate(decoder.variables.module_allocations)
    arrays = {i: (names[i] if names else f"argument {i}",
                  a.array if isinstance(a, TensorMap) else a)
              for i, a in enumerate(args) if isinstance(a, TensorMap)
              or isinstance(a, np.ndarray) and _is_pointer(kernel.params[i])}
    placed = place(arena, list(arrays.values()))
    arena.build()
    decoder.variables.initialise()
    found = dict(zip(arrays, placed, strict=True))
    decoder.tensor_maps.clear()
    for i, (variable, value) in enumerate(zip(kernel.params, args, strict=True)):
        if isinstance(value, AllocationEdge):
            value = value.address(found)
        elif isinstance(value, TensorMap):
            value = _bind_map(decoder, value, variable, i, *found[i])
        elif i in found:
            value = found[i][1]
        data = encode_parameter(variable, value, i)
        start = decoder.variables.param_offsets[variable.name]
        decoder.param.bytes[start : start + variable.size] = np.frombuffer(data, np.uint8)
    unique = {a.start: a for a, _ in placed}
    for allocation in unique.values():
        arena.slice(allocation)[:] = host_bytes(allocation.host, allocation.size)
    return list(unique.values())


def _bind_map(decoder: Decoder, tensor_map: TensorMap, variable: Variable, number: int,
              owner: Allocation, start: int) -> bytes:
    """Give a tensor map a handle, which becomes the value of its parameter."""
    if variable.size != MAP_BYTES or variable.align % 64:
        raise SimError(f"argument {number}: a tensor map needs a parameter of {MAP_BYTES} bytes "
                       f"aligned to 64, '{variable.name}' has {variable.size} aligned to "
                       f"{variable.align}")
    if start % 16:
        raise SimError(f"argument {number}: the tensor of a tensor map starts at {start:#x}, "
                       "which must be a multiple of 16")
    if start + tensor_map.reach > owner.start + owner.size:
        raise SimError(f"argument {number}: a tensor map over {tensor_map.reach} bytes, but "
                       f"{owner.name} has {owner.start + owner.size - start} from there on")
    decoder.tensor_maps.append(Box(tensor_map, start - GLOBAL_BASE, owner.writable))
    return handle(len(decoder.tensor_maps) - 1)


def _is_pointer(variable: Variable) -> bool:
    """Whether a parameter can hold an address: one 64-bit integer."""
    return variable.size == 8 and variable.type in ("u64", "s64", "b64")


def encode_parameter(variable: Variable, value: Any, number: int) -> bytes:
    """The bytes of one parameter; SimError where the value does not fit its type."""
    ty, size = variable.type, variable.size
    if size != TYPE_BYTES[ty]:
        if not isinstance(value, bytes | bytearray | memoryview | np.ndarray | np.generic):
            raise SimError(f"argument {number}: a {type(value).__name__} for a parameter of "
                           f"{size} bytes")
        data = value if isinstance(value, bytes) else memoryview(value).tobytes() if \
            isinstance(value, bytearray | memoryview) else value.tobytes()
        if len(data) != size:
            raise SimError(f"argument {number}: {len(data)} bytes for a parameter of {size}")
        return data
    if value is None:
        value = 0
    if ty in ("f16", "f32", "f64"):
        if not isinstance(value, int | float | np.generic):
            raise SimError(f"argument {number}: a {type(value).__name__} for a parameter of type "
                           f".{ty}")
        return np.dtype(f"f{size}").type(value).tobytes()
    if isinstance(value, float | np.floating) or (isinstance(value, np.generic)
                                                  and value.dtype.kind not in "iub"):
        return _float_bits(value, size, number)
    try:
        whole = int(value)
    except (TypeError, ValueError):
        raise SimError(
            f"argument {number}: a {type(value).__name__} for a parameter of type .{ty}") from None
    if not -(1 << (8 * size - 1)) <= whole < 1 << 8 * size:
        raise SimError(f"argument {number}: {whole} does not fit a parameter of type .{ty}")
    return (whole & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _float_bits(value: Any, size: int, number: int) -> bytes:
    """A float for a parameter declared by its bits: numpy scalars of that size keep their type."""
    if isinstance(value, np.generic) and value.dtype.itemsize == size:
        return value.tobytes()
    if size not in (2, 4, 8):
        raise SimError(f"argument {number}: a float for a parameter of {size} bytes")
    return np.dtype(f"f{size}").type(value).tobytes()


def _check_grid(grid: Any) -> None:
    """SimError unless it is three numbers of CTAs that a launch may have."""
    if not isinstance(grid, (tuple, list)) or len(grid) != 3 or \
            not all(isinstance(n, (int, np.integer)) for n in grid):
        raise SimError(f"the grid is {grid!r:.80}, expected three integers: CTAs along x, y and z")
    for axis, extent, most in zip("xyz", grid, MAX_GRID, strict=True):
        if not 0 <= extent <= most:
            raise SimError(f"a grid of {grid} CTAs: {most} along {axis} are the most")


def _write_back(decoder: Decoder, allocations: list[Allocation]) -> None:
    """Copy every argument buffer back to the host."""
    for allocation in allocations:
        if allocation.writable and allocation.size:
            host_bytes(allocation.host, allocation.size)[:] = decoder.arena.slice(allocation)
