"""Uninitialised values: which bits of registers, shared and local memory nobody has written.

LLVM may read a register that nothing wrote where the value does not matter, as in the unused half
of a packed pair. So undefined bits only travel, and are an error where something depends on them:
an address, a branch, what decides whether an instruction with effects runs, what goes to global
memory or into an atomic operation. Instructions that move bits are decoded a second time, over twin
registers and memories that hold ones where a bit is undefined; of all others every result is
undefined where an input is. Until a kernel reads something undefined all this is idle.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.sim.errors import Fault
from tilec.sim.flow import Flat, Placed, targets
from tilec.sim.machine import Array, Code, Mask, place_of
from tilec.sim.memory import Local, Shared, Space
from tilec.sim.ptx import TYPE_BYTES, Instr, Operand, is_float

if TYPE_CHECKING:
    from tilec.sim.decode import Decoder

Register = tuple[int, int, str]
"""Frame, scope and name: the key of Decoder.registers."""
Run = Callable[[Mask], Any]

_MOVES: dict[str, tuple[int, ...]] = {
    "mov": (1,), "cvt": (1,), "prmt": (1, 2), "selp": (1, 2), "shl": (1,), "shr": (1,),
    "shf": (1, 2), "bfe": (1,), "bfi": (1, 2), "shfl": (1,), "ld": (), "st": (1,), "ldmatrix": (),
    "stmatrix": (1,), "mma": (1, 2, 3),
}
"""Which operands of an instruction are bits that it moves; the others say where to."""
_BITWISE = ("and", "or", "xor", "not", "lop3")
_EFFECTS = ("st", "stmatrix", "red", "atom", "cp", "bra", "brx", "bar", "barrier", "call", "ret",
            "exit", "trap", "mbarrier", "wgmma")
_CONSUMES = ("red", "atom", "cp", "brx", "bar", "barrier", "mbarrier", "wgmma")


class Step:
    """What one instruction does to undefined bits, made out when it is first asked for.

    Reads and writes are the registers that its rule has named; a synced instruction is one that
    whole warps do together.
    """

    def __init__(self, decoder: Decoder, instr: Instr) -> None:
        self.decoder, self.instr = decoder, instr
        self.place = decoder.here()
        self.synced = False
        self.reads: list[Register] = []
        self.writes: list[Register] = []
        self.run: Run | None = None

    def __call__(self, mask: Mask) -> None:
        if self.run is None:
            self.decoder.go(self.place)
            assert self.decoder.undefined is not None
            self.run = self.decoder.undefined.made(self)
        self.run(mask)


class Bits(dict[Register, Array]):
    """The undefined bits of registers, in arrays of their types made when first asked for."""

    def __init__(self, registers: dict[Register, Array]) -> None:
        self.registers = registers

    def __missing__(self, key: Register) -> Array:
        made = self[key] = np.zeros_like(self.registers[key])
        return made


class Undefined:
    """The undefined bits of one kernel's CTA; `live` once there may be some that matter."""

    def __init__(self, decoder: Decoder, flat: Flat) -> None:
        self.decoder = decoder
        self.live = False
        self.bits = Bits(decoder.registers)
        self.uses: dict[int, tuple[set[Register], set[Register]]] = {}
        self.never_written: list[Register] = []
        self.sources: list[str] = []
        self.waiting: tuple[Run, Mask] = (lambda mask: None), None
        instrs = [entry.instr for entry in flat.entries if entry.instr is not None]
        # A generic store may reach memory of any space, which is not followed.
        self.follows = not any(i.op == "st" and _memory(i) == "generic" for i in instrs)
        self.from_start = any(i.op == "ld" and _memory(i) == "local" for i in instrs)
        self.shared = Shared(0, decoder.shared.ranks)
        self.local = Local(decoder.lanes, decoder.local.used)
        self.spaces: dict[str, Space] = {**decoder.spaces, "shared": self.shared,
                                         "shared::cluster": self.shared,
                                         "local": self.local}

    def begin(self) -> None:
        """A new CTA."""
        if self.live:
            for array in self.bits.values():
                array[...] = 0
        self.live = False
        self.sources.clear()
        for key in self.never_written:
            self.bits[key][...] = ones(self.bits[key])
        if self.never_written:
            names = ", ".join(key[2] for key in self.never_written[:4])
            more = ", ..." if len(self.never_written) > 4 else ""
            self.sources.append(f"what is read of {names}{more} before it is written")
        if self.never_written or (self.follows and self.from_start):
            self.start()

    def start(self) -> None:
        """Follow undefined bits from here on."""
        self.live = True
        checks = self.decoder.checks
        assert checks is not None
        self.shared.resize(self.decoder.shared.size)
        self.shared.bytes[:] = 0
        self.local.bytes[:] = 0xFF if self.follows else 0
        if self.follows:
            unwritten = (checks.shared.written == 0).repeat(checks.shared.granule)
            size = min(len(unwritten), len(self.shared.bytes))
            self.shared.bytes[:size] = unwritten[:size] * np.uint8(0xFF)

    def define(self, offsets: Array, width: int) -> None:
        """Bytes of shared memory that something other than st writes."""
        if self.live:
            self.shared.bytes[offsets.astype(np.int64)[:, None] + np.arange(width)] = 0

    # Decoding

    def note(self, step: Step, named: list[Register], assigned: list[Register]) -> None:
        """An instruction has been decoded, with these registers, in the order of naming."""
        decoder, guard = step.decoder, step.instr.guard
        step.reads, step.writes = named, assigned
        for key in assigned:
            named.remove(key)
        condition = None if guard is None else decoder.key(guard)
        reads = {*named, *(assigned if _adds(step.instr) else ())}
        self.uses[decoder.index] = (
            reads | {condition} if condition else reads, set() if guard else {*assigned})

    def made(self, step: Step) -> Run:
        """A step as code."""
        decoder, instr, reads = step.decoder, step.instr, step.reads
        moved = _moved(instr)
        through = [decoder.key(o.items[0].name) for o in _flatten(instr.operands)
                   if o.kind == "addr"]
        data = [] if moved is None else [decoder.key(o.name) for o in moved]
        sources = [self.bits[k] for k in reads if k not in data and k not in through]
        addresses = [self.bits[k] for k in through if k in decoder.registers]
        results = [self.bits[k] for k in step.writes]
        if moved is not None:
            twin = decoder.twin(instr, {id(o) for o in moved})
            return self._move(instr, twin, addresses, sources, results)
        leaves = instr.op == "st" and _memory(instr) != "param"
        consumed = sources if instr.op in _CONSUMES else []
        if leaves:
            ty = f"b{8 * TYPE_BYTES[instr.type]}"
            consumed = [decoder.moved_source(o, ty) for o in _flatten(instr.operands[1:2])]
        adds = decoder.pred(instr.operands[3]) if _adds(instr) else None
        verb = "stores" if leaves else "uses"
        if instr.op in _BITWISE:
            mix = _bitwise(decoder, instr, self)
        elif _carries(instr):
            mix = _upward(sources)
        else:
            mix = _spread(decoder, instr, step.synced, sources)

        def run(mask: Mask) -> None:
            self.demand(addresses, mask, "uses an address that depends on")
            self.demand(consumed, mask, f"{verb} a value that depends on")
            if adds is not None:
                kept = adds() if mask is None else adds() & mask
                self.demand(results, kept, "adds to an accumulator that depends on")
            for result in results:
                np.copyto(result, mix(result), where=True if mask is None else mask,
                          casting="unsafe")

        return run

    def _move(self, instr: Instr, twin: Code, addresses: list[Array], sources: list[Array],
              results: list[Array]) -> Run:
        """A step of an instruction that moves bits: where to depends on addresses and sources."""
        loads = instr.op in ("ld", "ldmatrix")
        flags = [r for r in results if r.dtype == bool] if instr.op == "shfl" else []

        def run(mask: Mask) -> None:
            where: Any = True if mask is None else mask
            self.demand(addresses, mask, "uses an address that depends on")
            twin(mask)
            for flag in flags:  # the twin has put shfl's own predicate there
                np.copyto(flag, False, where=where)
            if loads and len(self.sources) < 4 and any((r != 0)[mask].any() for r in results):
                self.sources.append(f"{_memory(instr)} memory that is read before it is written "
                                    f"({place_of(instr)})")
            unclear = _any(sources)
            if unclear is not None:
                for result in results:
                    np.copyto(result, ones(result), where=unclear & where)

        return run

    def after(self, step: Step, code: Run) -> Run:
        """The code, after the step where undefined bits are followed."""

        def run(mask: Mask) -> Any:
            if self.live:
                step(mask)
            else:
                self.waiting = step, mask
            return code(mask)

        return run

    def wake(self) -> None:
        """The instruction under way reads what was never written."""
        if not self.live and self.follows:
            self.start()
            step, mask = self.waiting
            step(mask)

    def guarded(self, step: Step, code: Code) -> Code:
        """The code with a look at its guard."""
        instr = step.instr
        key = step.decoder.key(instr.guard or "")
        if key is None:
            return code  # which says so
        guard, results = self.bits[key], [self.bits[k] for k in step.writes]

        def run(mask: Mask) -> Any:
            if not self.live:
                return code(mask)
            if instr.op in _EFFECTS:
                self.demand([guard], mask, "decides by a predicate that depends on")
                return code(mask)
            unclear = guard.copy() if mask is None else guard & mask
            result = code(mask)
            for bits in results:
                np.copyto(bits, ones(bits), where=unclear)
            return result

        return run

    def demand(self, arrays: list[Array], mask: Mask, verb: str) -> None:
        """Fault where a thread depends on undefined bits."""
        for array in arrays:
            bad = array != 0 if mask is None else (array != 0) & mask
            if np.count_nonzero(bad):
                raise Fault(f"{verb} an uninitialised value: " + ", or ".join(self.sources),
                            int(np.flatnonzero(bad)[0]))

    def analyse(self, flat: Flat, order: list[Placed]) -> None:
        """Find the registers that may be read before anything has written them."""
        number = {key: i for i, key in enumerate(self.bits.registers)}
        full = (1 << len(number)) - 1
        written = dict.fromkeys((p.block for p in order), full)  # on every way to a block's start
        written[order[0].block] = 0
        changed = True
        while changed:
            changed, found = False, 0
            for placed in order:
                now = written[placed.block]
                for index in range(placed.first, placed.last):
                    reads, writes = self.uses.get(index, (set(), set()))
                    for key in reads:
                        found |= ~now & 1 << number[key]
                    for key in writes:
                        now |= 1 << number[key]
                following = targets(flat, placed.last - 1)
                for entry in [placed.last] if following is None else following:
                    block = flat.block_at[entry]
                    if written[block] & now != written[block]:
                        written[block] &= now
                        changed = True
        self.never_written = [key for key, i in number.items() if found >> i & 1]


def ones(array: Array) -> Any:
    """The value of the array's type whose bits are all set, in that type: NumPy takes no number
    beyond an int64 beside a mask."""
    whole = True if array.dtype == bool else np.iinfo(array.dtype).max
    return array.dtype.type(whole)


def _any(arrays: list[Array]) -> Array | None:
    """Lanes where one of the arrays is not zero."""
    found = None
    for array in arrays:
        found = array != 0 if found is None else found | (array != 0)
    return found


def _memory(instr: Instr) -> str:
    """The space that a load or store names."""
    names = (m.partition("::")[0] for m in instr.mods)
    return next((n for n in names if n in ("global", "shared", "local", "const", "param")),
                "generic")


def _flatten(operands: tuple[Operand, ...]) -> list[Operand]:
    """Operands with the parts of vectors one by one."""
    return [o for operand in operands
            for o in (operand.items if operand.kind == "vec" else (operand,))]


def _adds(instr: Instr) -> bool:
    """Whether it is a wgmma that may keep what its accumulators hold."""
    return instr.op == "wgmma" and len(instr.operands) > 3 and (
        instr.operands[3].kind == "reg" or instr.operands[3].value != 0)


def _moved(instr: Instr) -> list[Operand] | None:
    """The operands whose bits an instruction moves; None if it does something else with them."""
    places = _MOVES.get(instr.op)
    if places is None or (instr.op in ("ld", "st") and _memory(instr) not in ("shared", "local")):
        return None
    if instr.op == "mov" and "clock" in instr.operands[1].name:
        return None
    if instr.op == "cvt" and any(is_float(t) or "x2" in t or t == "sat" for t in instr.mods):
        return None
    return _flatten(tuple(instr.operands[i] for i in places))


def _bitwise(decoder: Decoder, instr: Instr, undefined: Undefined) -> Callable[[Array], Any]:
    """Undefined bits of a result whose bits depend on those of the inputs at the same place."""
    inputs = []
    for operand in instr.operands[1:]:
        key = decoder.key(operand.name) if operand.kind == "reg" else None
        value = decoder.src(operand._replace(negated=False), instr.type)
        inputs.append((value, np.zeros_like(value) if key is None else
                       undefined.bits[key].view(value.dtype)))
    flips = instr.op == "or"

    def mix(result: Array) -> Any:
        total = functools.reduce(np.bitwise_or, (bits for _, bits in inputs))
        if instr.op in ("and", "or"):  # there a defined 0, or 1, decides
            for value, bits in inputs:
                total = total & ((~value if flips else value) | bits)
        return total

    return mix


def _carries(instr: Instr) -> bool:
    """Whether each bit of a result depends on the bits of the inputs at its place and below."""
    if is_float(instr.type) or instr.type.endswith("x2"):
        return False
    return instr.op in ("add", "sub", "neg") and not {"sat", "cc"} & {*instr.mods} or \
        instr.op in ("mul", "mad") and "lo" in instr.mods and "cc" not in instr.mods


def _upward(sources: list[Array]) -> Callable[[Array], Any]:
    """The lowest undefined bit of the inputs and all above it."""
    def mix(result: Array) -> Any:
        total = functools.reduce(np.bitwise_or, sources, np.zeros_like(result))
        return total | np.negative(total)

    return mix


def _spread(decoder: Decoder, instr: Instr, synced: bool, sources: list[Array]
            ) -> Callable[[Array], Any]:
    """All bits of a result, or of a half of a packed one, are undefined where any of the inputs
    are; what warps do together is, where any lane's are."""
    if instr.type.endswith("x2"):
        return lambda result: _halves(result, _any([_by_half(s) for s in sources]))
    if instr.op == "cvt" and instr.mods[-2].endswith("x2"):  # of two values, the upper one first
        pair = [decoder.moved_source(o, "b" + instr.type[1:]) for o in instr.operands[2:0:-1]]
        return lambda result: _halves(result, (np.stack(pair, axis=1) != 0).reshape(-1))

    def mix(result: Array) -> Any:
        unclear = _any(sources)
        if unclear is None:
            return 0
        if synced:
            unclear = unclear.reshape(-1, 32).any(axis=1).repeat(32)
        return np.where(unclear, ones(result), result.dtype.type(0))

    return mix


def _by_half(array: Array) -> Array:
    """Which halves of the elements are not zero."""
    if array.dtype == bool:
        return array.repeat(2)
    return array.view(f"u{array.dtype.itemsize // 2}") != 0


def _halves(result: Array, unclear: Array | None) -> Any:
    """Undefined bits of a packed result from a truth value for each of its halves."""
    if unclear is None:
        return 0
    if result.dtype == bool:
        return unclear.reshape(-1, 2).any(axis=1)
    half = np.dtype(f"u{result.dtype.itemsize // 2}")
    return (unclear * np.iinfo(half).max).astype(half).view(result.dtype)
