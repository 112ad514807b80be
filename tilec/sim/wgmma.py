"""wgmma in flight: products of warpgroups that read shared memory and write registers later.

PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". A product is computed at one moment
between its issue and the wait that covers it, without a seed at the wait, with one at a random
moment; those of a warpgroup in the order of their issue. Until the wait nothing may touch its
accumulators or write its A registers, and after such accesses wgmma.fence must come first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tilec.sim.errors import Fault
from tilec.sim.machine import Array, Code, Mask, Moves, place_of
from tilec.sim.ptx import Instr, Operand

if TYPE_CHECKING:
    from tilec.sim.decode import Decoder
    from tilec.sim.undefined import Register

READS = "a wgmma of warpgroup {}"
_SWIZZLES = (0, 128, 64, 32)
_RESERVED = 0x3FF1_C000_C000_C000


class Descriptor(NamedTuple):
    """A shared memory matrix descriptor; offsets and the start address in bytes."""

    start: int
    leading: int
    stride: int
    base: int
    swizzle: int

    @staticmethod
    def parse(bits: int, thread: int) -> Descriptor:
        """The fields of 64 bits; Fault where a bit is set that has no meaning."""
        if bits & _RESERVED:
            raise Fault(f"the matrix descriptor {bits:#018x} has bits set that must be 0: "
                        f"{bits & _RESERVED:#x}", thread)
        start, leading, stride = ((bits >> at & 0x3FFF) << 4 for at in (0, 16, 32))
        return Descriptor(start, leading, stride, bits >> 49 & 7,
                          _SWIZZLES[bits >> 62])


@lru_cache(maxsize=256)
def byte_table(descriptor: Descriptor, rows: int, k: int, width: int, mn_major: bool) -> Array:
    """[row, k] of the byte offsets from the start of a matrix; `descriptor.start` is modulo 1024.

    Rows run along M or N. Without a swizzle a matrix consists of cores of 8 times 16 bytes, 128 in
    a row; with one of 8 rows of as many bytes as it spans (PTX ISA, "Strides" and "Canonical
    Layouts"; that leading and stride change places without a swizzle along M or N is measured).
    """
    row, column = np.meshgrid(np.arange(rows), np.arange(k), indexing="ij")
    outer, inner = (column, row * width) if mn_major else (row, column * width)
    span = descriptor.swizzle or 16
    within = outer % 8 * span + inner % span
    eights, spans = outer // 8, inner // span
    if descriptor.swizzle and not mn_major:
        table = within + eights * descriptor.stride + spans * span
    elif descriptor.swizzle or not mn_major:
        table = within + eights * descriptor.stride + spans * descriptor.leading
    else:
        table = within + eights * descriptor.leading + spans * descriptor.stride
    address = table + descriptor.start
    flips = ((address >> 7) - descriptor.base) & (max(descriptor.swizzle, 16) // 16 - 1)
    result: Array = (address ^ (flips << 4)) - descriptor.start
    return result


def locate(decoder: Decoder, bits: int, thread: int, shape: tuple[int, int, int],
           mn_major: bool) -> Array:
    """[row, k] of offsets into shared memory, in elements; `shape` is rows, k and bytes of one."""
    rows, k, width = shape
    descriptor = Descriptor.parse(bits, thread)
    phase = descriptor.start % 1024
    table = byte_table(descriptor._replace(start=phase), rows, k, width, mn_major)
    low, high = descriptor.start + int(table.min()), descriptor.start + int(table.max())
    shared = decoder.shared
    if low < shared.start or high + width > shared.start + shared.size:
        raise Fault(f"the matrix descriptor {bits:#018x} ({descriptor}) reaches from {low:#x} to "
                    f"{high + width:#x}: shared memory is [{shared.start:#x}, "
                    f"{shared.start + shared.size:#x})", thread)
    base = int(decoder.machine.cta[thread]) * shared.stride - shared.start + descriptor.start
    return (table + base) // width


@dataclass(slots=True, eq=False)
class Product:
    """One wgmma of a warpgroup; `numbers` are its group's numbers in the four warps.

    `compute` does it; `accumulators` and `sources` are numbers of the registers it uses.
    """

    instr: Instr
    warpgroup: int
    numbers: Array
    compute: Callable[[], None]
    accumulators: Array
    sources: Array
    done: bool = False


class Products:
    """The products of the CTAs of a cluster that nobody has waited for yet, in order of issue."""

    def __init__(self, decoder: Decoder, instrs: Sequence[Instr]) -> None:
        self.decoder = decoder
        self.accumulators = {o.name for i in instrs for o in registers(i.operands[:1])}
        self.names = self.accumulators | {o.name for i in instrs
                                          for o in registers(i.operands[1:2])}
        self.numbers: dict[Register, int] = {}  # of the registers named in wgmma instructions
        self.known: list[str] = []
        self.unfenced = np.zeros((0, decoder.lanes), bool)
        self.reset()

    def reset(self) -> None:
        """Forget the previous CTA; every register needs a fence."""
        self.committed = np.zeros(self.decoder.machine.warps, np.int64)
        self.covered = self.committed.copy()  # groups that each warp has waited for
        self.pending: list[Product] = []
        self.unfenced = np.ones((len(self.known), self.decoder.lanes), bool)
        self.busy = np.zeros_like(self.unfenced)  # accumulators in flight
        self.read = np.zeros_like(self.unfenced)  # A registers in flight

    def number(self, name: str) -> int | None:
        """The number of a register that has been decoded; None if the name is none."""
        key = self.decoder.key(name)
        if key is None or key not in self.decoder.registers:
            return None
        if key not in self.numbers:
            self.numbers[key] = len(self.known)
            self.known.append(name)
        return self.numbers[key]

    def number_all(self, operands: Sequence[Operand]) -> Array:
        """The numbers of registers."""
        return np.array([n for o in operands if (n := self.number(o.name)) is not None], int)

    def fence(self, mask: Mask) -> None:
        """wgmma.fence: earlier accesses to registers come before later products."""
        self.unfenced[:, self.decoder.machine.full(mask)] = False

    def issue(self, product: Product) -> None:
        """A product begins."""
        lanes = slice(128 * product.warpgroup, 128 * product.warpgroup + 128)
        used = np.concatenate([product.accumulators, product.sources])
        bad = np.argwhere(self.unfenced[used, lanes])
        if len(bad):
            name = self.known[used[bad[0][0]]]
            raise Fault(f"wgmma uses register {name}, accessed since the last wgmma.fence, or "
                        "before the first", lanes.start + int(bad[0][1]))
        first = self.decoder.machine.warp[lanes.start]
        product.numbers = self.committed[first : first + 4].copy()
        self.pending.append(product)
        self.busy[product.accumulators, lanes] = True
        self.read[product.sources, lanes] = True
        if self.decoder.machine.seeded:
            self.drift()

    def commit(self, mask: Mask) -> None:
        """End the present group of each warp and begin another."""
        self.committed[self.warps(mask)] += 1

    def wait(self, mask: Mask, newest: int) -> None:
        """Finish the groups of each warp but its `newest` last committed ones."""
        waits = self.warps(mask)
        self.covered[waits] = np.maximum(self.covered, self.committed - newest)[waits]
        checks = self.decoder.checks
        if checks is not None:
            for warp in np.flatnonzero(waits).tolist():
                threads = np.arange(32 * warp, 32 * warp + 32)
                checks.agents.done(threads, READS, warp // 4, int(self.covered[warp]) - 1)
        for product in self.pending:
            if (product.numbers < self.covered_in(product)).any():
                self.finish(product)
        self.busy[:, np.repeat(waits, 32)] = False
        self.read[:, np.repeat(waits, 32)] = False
        left = []
        for product in self.pending:
            late = product.numbers >= self.covered_in(product)
            if late.any():
                left.append(product)
                lanes = 128 * product.warpgroup + np.flatnonzero(np.repeat(late, 32))
                self.busy[np.ix_(product.accumulators, lanes)] = True
                self.read[np.ix_(product.sources, lanes)] = True
        self.pending = left

    def covered_in(self, product: Product) -> Array:
        """The groups that each warp of a product's warpgroup has waited for."""
        first = 4 * product.warpgroup
        return self.covered[first : first + 4]

    def warps(self, mask: Mask) -> Array:
        """Which warps have threads in the mask."""
        machine = self.decoder.machine
        return np.asarray(machine.full(mask).reshape(machine.warps, 32).any(axis=1))

    def finish(self, last: Product) -> None:
        """Compute the products of a warpgroup up to this one."""
        for product in self.pending:
            if product.warpgroup == last.warpgroup and not product.done:
                product.done = True
                try:
                    product.compute()
                except Fault as error:
                    raise self.decoder.machine.located(error, product.instr) from None
            if product is last:
                return

    def drift(self) -> None:
        """With a seed, let some products happen now."""
        rng = self.decoder.machine.rng
        if self.pending and rng.random() < 0.3:
            self.finish(self.pending[int(rng.integers(len(self.pending)))])

    def stir(self) -> bool:
        """No thread waits for a product in a way that others could see."""
        return False

    def watch(self, instr: Instr, code: Code) -> Code:
        """`code` with a check that it leaves registers in flight alone."""
        written = {o.name for o in registers(instr.operands[:1])}
        unfenced = written | self.accumulators
        named = {o.name for o in registers(instr.operands)} | {instr.guard or ""}
        mine = {name: n for name in sorted(named & self.names)
                if (n := self.number(name)) is not None}
        every, targets, touched = (
            np.array([n for name, n in mine.items() if name in chosen], int)
            for chosen in (named, written, unfenced))

        def watched(mask: Mask) -> int | Moves | None:
            lanes = slice(None) if mask is None else np.flatnonzero(mask)
            if self.pending:
                self.check(every, self.busy, lanes, "touches the accumulator")
                self.check(targets, self.read, lanes, "writes the operand")
            for number in touched:
                self.unfenced[number, lanes] = True
            return code(mask)

        return watched

    def check(self, numbers: Array, table: Array, lanes: slice | Array, what: str) -> None:
        """Fault if one of the registers is in flight in one of the lanes."""
        for number in numbers.tolist():
            if table[number, lanes].any():
                bad = np.flatnonzero(table[number, lanes])
                thread = int(bad[0] if isinstance(lanes, slice) else lanes[bad[0]])
                product = next(p for p in self.pending if p.warpgroup == thread // 128
                               and number in (*p.accumulators, *p.sources))
                raise Fault(f"{what} {self.known[number]} of a wgmma that no wgmma.wait_group "
                            f"has covered ({place_of(product.instr)})", thread)


def registers(operands: Sequence[Operand]) -> list[Operand]:
    """The registers in operands, those in vectors and addresses too."""
    found = []
    for operand in operands:
        found += [operand] if operand.kind == "reg" else registers(operand.items)
    return found
