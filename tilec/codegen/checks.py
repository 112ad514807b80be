"""Checks that a debug compilation puts into a kernel: accesses through pointers, what an author
promises, assertions, and how long threads wait for a barrier.

A check that fails does not end the grid. The first of all leaves a report: its number, the program,
and for an access where it lies in its allocation. What fails reads zeros and writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tilec.codegen.context import CodeGen
from tilec.codegen.emit import POINTER, Reg
from tilec.errors import Location
from tilec.ir import ops
from tilec.ir.core import Func, Op, Value
from tilec.ir.origins import pointer_roots
from tilec.ir.types import Pointer, pointee_of

# A report: the number of the check, from 1 on, and the program's three; then for an access how far
# it begins behind the start of its allocation, the allocation's size, and the access's, in bytes.
REPORT_BYTES = 40
_OFFSET, _SIZE, _WIDTH = 16, 24, 32
WAIT_LIMIT = 2_000_000_000  # nanoseconds
VERBS: dict[type[Op], str] = {ops.Load: "reads", ops.AsyncCopy: "reads", ops.Store: "writes",
                              ops.AtomicRmw: "updates", ops.AtomicCas: "updates"}


class Check(NamedTuple):
    """One check. what: of an access what it does and to which parameter, else the whole message.
    element: bytes of an access's element, 0 for what is no access."""

    loc: Location
    what: str
    advice: str
    element: int = 0


class Checks:
    """The checks of one kernel; each pointer parameter comes with the bounds of its allocation."""

    def __init__(self, cg: CodeGen) -> None:
        self.cg, self.found = cg, dict[Check, int]()
        self.report = Reg("%report", POINTER)
        self.bounds = {arg: (Reg(f"%begin{i}", "i64"), Reg(f"%end{i}", "i64"))
                       for i, arg in enumerate(checked_pointers(cg.func))}

    def parameters(self) -> list[str]:
        """The parameters that the launch adds after the author's."""
        return [f"{POINTER} align 8 {self.report.ref}",
                *(f"{b.elem} {b.ref}" for pair in self.bounds.values() for b in pair)]

    def require(self, holds: Reg, check: Check, details: Sequence[tuple[int, Reg]] = ()) -> None:
        """Report a check where `holds` does not, with 64-bit values at offsets of the report."""
        e = self.cg.e
        number = self.found.setdefault(check, len(self.found) + 1)
        with e.when(e.binary("xor", holds, e.const(True, "i1")), "broken"):
            before = e.asm("atom.relaxed.gpu.global.cas.b32 $0, [$1], 0, $2;", "=r,l,r",
                           (self.report, e.const(number, "i32")), ("i32",))[0]
            with e.when(e.compare("eq", before, e.const(0, "i32")), "report"):
                for i, axis in enumerate("xyz"):
                    e.store(self.cg.special(f"ctaid.{axis}"), self._at(4 + 4 * i), 4)
                for offset, value in details:
                    e.store(value, self._at(offset), 8)

    def _at(self, offset: int) -> Reg:
        return self.cg.shift(self.report, offset)

    def wait(self, op: Op, address: Reg, parity: Reg) -> None:
        """Wait for a phase of an mbarrier, but not for ever, and not once something has failed."""
        e = self.cg.e
        text = "{ .reg .pred p, q; .reg .b32 c; .reg .b64 s, t; mov.u64 s, %globaltimer; " \
            "W: mbarrier.try_wait.parity.shared::cta.b64 p, [$1], $2; @p bra D; " \
            "ld.volatile.global.b32 c, [$3]; setp.ne.b32 q, c, 0; @q bra D; " \
            "mov.u64 t, %globaltimer; sub.u64 t, t, s; " \
            f"setp.lt.u64 q, t, {WAIT_LIMIT}; @q bra W; D: selp.b32 $0, 1, 0, p; }}"
        done = e.asm(text, "=r,r,r,l", (address, parity, self.report), ("i32",), convergent=True)[0]
        self.require(e.compare("ne", done, e.const(0, "i32")), Check(
            op.loc, f"a thread has waited {WAIT_LIMIT // 10**9} s for this mbarrier",
            "count its arrivals and bytes, and the parity that is waited for"))


class Guard:
    """Keeps the accesses of one op inside the allocation of the parameter that its pointers come
    from, and aligned; of what may come from several, or from memory, only the latter."""

    def __init__(self, cg: CodeGen, op: Op, pointers: Value) -> None:
        self.cg, self.op = cg, op
        self.checks = cg.checks
        if self.checks is None:
            return
        roots = pointer_roots(pointers, cg.func)
        root = next(iter(roots)) if roots is not None and len(roots) == 1 else None
        self.bounds = self.checks.bounds.get(root) if root is not None else None
        name = "memory" if root is None else root.name or str(root.index)
        self.check = Check(op.loc, f"{VERBS[type(op)]} {name}",
                           "mask the elements outside of the array off",
                           pointee_of(pointers.type).bytes)
        self.seen: list[tuple[Reg, Reg, int]] = []  # whether it is bad, address and size of each

    def allowed(self, pointer: Reg, offset: int, size: int, pred: Reg | None) -> Reg | None:
        """`pred`, but false where `size` bytes there must not be accessed."""
        if self.checks is None:
            return pred
        e = self.cg.e
        address = e.convert("ptrtoint", self.cg.shift(pointer, offset), "i64")
        zero = e.const(0, "i64")
        fine = e.compare("eq", e.int_op("and", address, size - 1), zero)
        if self.bounds is not None:
            begin, end = self.bounds
            fine = e.binary("and", fine, e.compare("uge", address, begin))
            fine = e.binary("and", fine, e.compare("ule", e.int_op("add", address, size), end))
        bad = e.binary("xor", fine, e.const(True, "i1"))
        bad = bad if pred is None else e.binary("and", bad, pred)
        self.seen.append((bad, address, size))
        return fine if pred is None else e.binary("and", pred, fine)

    def report(self) -> None:
        """Report the last of the accesses that was not allowed."""
        if self.checks is None or not self.seen:
            return
        e = self.cg.e
        (wrong, address, size), *others = self.seen
        width = e.const(size, "i64")
        for bad, at, n in others:
            address = e.select(bad, at, address)
            width = e.select(bad, e.const(n, "i64"), width)
            wrong = e.binary("or", wrong, bad)
        begin, end = self.bounds or (e.const(0, "i64"), e.const((1 << 63) - 1, "i64"))
        self.checks.require(e.binary("xor", wrong, e.const(True, "i1")), self.check, (
            (_OFFSET, e.binary("sub", address, begin)), (_SIZE, e.binary("sub", end, begin)),
            (_WIDTH, width)))


def checked_pointers(func: Func) -> list[Value]:
    """The parameters whose allocation a launch tells a kernel with checks."""
    return [arg for arg in func.args if isinstance(arg.type, Pointer)]
