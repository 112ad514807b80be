"""The mma.sync instructions that a dot may become, by the types of its operands.

Source: PTX ISA, "Matrix multiply-accumulate operation using mma instruction".
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir import ops
from tilec.ir.types import Scalar, bf16, f16, f32, f64, i8, i32, scalar_of

THREADS_ALONG_K = 4  # lanes that share the k extent of an operand, in every instruction


@dataclass(frozen=True)
class MmaInstruction:
    """m, n, k: its extents. operand: what the registers hold (fp8 is widened to f16 first), and
    accumulator likewise. types: d, a, b and c as PTX spells them."""

    m: int
    n: int
    k: int
    operand: Scalar
    accumulator: Scalar
    types: str

    @property
    def name(self) -> str:
        """As in PTX."""
        return f"mma.sync.aligned.m{self.m}n{self.n}k{self.k}.row.col.{self.types}"

    @property
    def word(self) -> int:
        """Operand elements in one register: they are neighbours along k."""
        return default_k_width(self.operand)

    @property
    def words(self) -> int:
        """Registers along k that one thread gives one instruction (for one row or column)."""
        return self.k // (THREADS_ALONG_K * self.word)


def _instruction(k: int, operand: Scalar, accumulator: Scalar, a: str, c: str) -> MmaInstruction:
    m = 8 if operand is f64 else 16
    return MmaInstruction(m, 8, k, operand, accumulator, f"{c}.{a}.{a}.{c}")


_F16 = {f32: _instruction(16, f16, f32, "f16", "f32"),
        f16: _instruction(16, f16, f16, "f16", "f16")}
_INSTRUCTIONS: dict[str, dict[Scalar, MmaInstruction]] = {
    "f16": _F16, "f8e4m3": _F16, "f8e5m2": _F16,
    "bf16": {f32: _instruction(16, bf16, f32, "bf16", "f32")},
    "f32": {f32: _instruction(8, f32, f32, "tf32", "f32")},
    "f64": {f64: _instruction(4, f64, f64, "f64", "f64")},
    "i8": {i32: _instruction(32, i8, i32, "s8", "s32")},
}


def instruction_of(op: ops.Dot) -> MmaInstruction | None:
    """What multiplies tiles of these types; None: only fused multiply-adds do."""
    a, c = scalar_of(op.a.type), scalar_of(op.c.type)
    if a == f32 and op.input_precision == "ieee":
        return None
    return _INSTRUCTIONS.get(a.name, {}).get(c)


def default_k_width(element: Scalar) -> int:
    """Neighbours along k that a thread holds side by side: those of one 32-bit register."""
    return max(1, 32 // element.bits)
