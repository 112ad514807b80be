"""Ops that touch global memory or the outside: load, store, atomics, assert, print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tilec.ir.core import Op, Value, attr, operand, operands
from tilec.ir.ops.base import ScratchOp
from tilec.ir.types import Pointer, Scalar, Type, element_of, i1, refines, with_element

CACHE_LOAD = ("", ".ca", ".cg", ".cv")
CACHE_STORE = ("", ".wb", ".cg", ".cs", ".wt")
EVICTION = ("", "evict_first", "evict_last", "evict_normal")
RMW_KINDS = ("add", "max", "min", "and", "or", "xor", "xchg")


def has_atomic(kind: str, t: Type | None) -> bool:
    """Whether there is an atomic of a kind, "cas" too, for elements of a type (docs/semantics.md,
    section 9)."""
    if not isinstance(t, Scalar) or t.bits not in (16, 32, 64):
        return False
    if t.bits == 16:
        return kind == "cas" or t.is_float and kind in ("add", "max", "min")
    return not t.is_float or kind not in ("and", "or", "xor")


class MemoryOp(Op):
    """Base of accesses through `ptr`: checks mask and value against the pointers."""

    ptr: Value = operand()
    mask: Value | None = None

    def _access(self, value: Value | None) -> Type:
        pointer = element_of(self.ptr.type)
        if not isinstance(pointer, Pointer):
            raise self.fail(f"operand is {self.ptr.type}, expected pointers")
        want = with_element(self.ptr.type, pointer.pointee)
        if value is not None and not refines(value.type, want):
            raise self.fail(f"value is {value.type}, expected {want}")
        if self.mask is not None and not refines(self.mask.type, with_element(want, i1)):
            raise self.fail(f"mask is {self.mask.type}, expected {with_element(want, i1)}")
        return want


class Load(MemoryOp, name="tile.load", effects={"read"}):
    """Read through pointers; lanes that are masked off give `other`, or poison without it.

    buffered: if it has a stage, it is a copy into shared memory, from which the loop reads it;
    else the value waits in registers.
    """

    mask: Value | None = operand(optional=True)
    other: Value | None = operand(optional=True)
    buffered: bool = attr(bool, False)
    cache: str = attr(str, "", choices=CACHE_LOAD)
    eviction: str = attr(str, "", choices=EVICTION)
    volatile: bool = attr(bool, False)

    @property
    def effects(self) -> frozenset[str]:
        """A volatile load also counts as a write, so that nothing moves across it."""
        return frozenset({"read", "write"}) if self.volatile else self.class_effects

    def infer(self) -> Sequence[Type]:
        return (self._access(self.other),)


class Store(MemoryOp, name="tile.store", effects={"write"}):
    """Write values through pointers, where the mask holds."""

    value: Value = operand()
    mask: Value | None = operand(optional=True)
    cache: str = attr(str, "", choices=CACHE_STORE)
    eviction: str = attr(str, "", choices=EVICTION)

    def infer(self) -> Sequence[Type]:
        self._access(self.value)
        if element_of(self.ptr.type).const:  # type: ignore[union-attr]
            raise self.fail(f"cannot store through {self.ptr.type}")
        return ()


class Atomic(ScratchOp, MemoryOp):
    """Base of atomics: each puts another value in place of the one that it finds and gives the old
    ones, poison where the mask does not hold. kind: which; given: what the new value is made of,
    beside the old one."""

    kind: str
    value: Value
    sem: str = attr(str, "acq_rel", choices=("relaxed", "acquire", "release", "acq_rel"))
    scope: str = attr(str, "gpu", choices=("cta", "gpu", "sys"))

    @property
    def given(self) -> tuple[Value, ...]:
        """The operands beside pointer and mask."""
        return (self.value,)

    @property
    def acquires(self) -> bool:
        """Whether what follows it, in every thread, stays behind it."""
        return self.sem in ("acquire", "acq_rel")

    @property
    def releases(self) -> bool:
        """Whether what precedes it, in every thread, stays before it."""
        return self.sem in ("release", "acq_rel")

    def infer(self) -> Sequence[Type]:
        (t, *_) = [self._access(value) for value in self.given]
        if not has_atomic(self.kind, element_of(t)):
            raise self.fail(f"no atomic {self.kind} for {element_of(t)}")
        if element_of(self.ptr.type).const:  # type: ignore[union-attr]
            raise self.fail(f"cannot store through {self.ptr.type}")
        return (t,)


class AtomicRmw(Atomic, name="tile.atomic_rmw", effects={"read", "write"}):
    """Atomic read-modify-write."""

    value: Value = operand()
    mask: Value | None = operand(optional=True)
    kind: str = attr(str, choices=RMW_KINDS)


class AtomicCas(Atomic, name="tile.atomic_cas", effects={"read", "write"}):
    """Atomic compare-and-swap: puts `value` where the bits of `compare` are."""

    compare: Value = operand()
    value: Value = operand()
    kind: ClassVar[str] = "cas"  # type: ignore[misc]

    @property
    def given(self) -> tuple[Value, ...]:
        return self.compare, self.value


class Assert(Op, name="tile.assert", effects={"io"}):
    """Stop with `message` unless the condition holds for every element."""

    cond: Value = operand()
    message: str = attr(str, "")

    def infer(self) -> Sequence[Type]:
        if element_of(self.cond.type) != i1:
            raise self.fail(f"condition is {self.cond.type}, expected i1")
        return ()


class Assume(Op, name="tile.assume", effects={"io"}):
    """A promise by the author that a scalar condition holds; analyses may use it."""

    cond: Value = operand()

    def infer(self) -> Sequence[Type]:
        if self.cond.type != i1:
            raise self.fail(f"condition is {self.cond.type}, expected i1")
        return ()


class Print(Op, name="tile.print", effects={"io"}):
    """Print `prefix` and every element of the operands, integers in hexadecimal if `hex`."""

    values: tuple[Value, ...] = operands()
    prefix: str = attr(str, "")
    hex: bool = attr(bool, False)


class Breakpoint(Op, name="tile.breakpoint", effects={"io"}):
    """Open the interpreter's prompt; `names` are the Python names of the operands. Compiled code
    does nothing here."""

    values: tuple[Value, ...] = operands()
    names: tuple[str, ...] = attr(tuple, (), of=str)
