"""Lowering of arithmetic, logic, comparisons and selection; docs/semantics.md sections 3 and 4."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tilec.codegen import casts
from tilec.codegen.context import CodeGen, compute, fragment_of, lower
from tilec.codegen.emit import Reg
from tilec.codegen.values import Index, Tile, align
from tilec.errors import CompilationError
from tilec.ir import ops
from tilec.ir.core import Op, Value
from tilec.ir.fragment import Fragment
from tilec.ir.types import Scalar, Tensor, element_of, i1, scalar_of


@lower(ops.Elementwise)
def lower_elementwise(cg: CodeGen, op: Op) -> None:
    """Once per distinct combination of the operands' values."""
    rule = compute[type(op)]
    if not isinstance(op.results[0].type, Tensor):
        cg.env[op.results[0]] = rule(cg, op, *map(cg.scalar, op.operands))
        return
    tiles = [cg.tile(v) for v in op.operands]
    runs = _runs(cg, op.results[0])
    regs, index = align(cg.e, tiles, runs)
    cg.env[op.results[0]] = Tile(rule(cg, op, *regs), tiles[0].size, index)


def _runs(cg: CodeGen, value: Value) -> Index:
    """For a mask that is known to be constant in runs: the run of every register."""
    if element_of(value.type) != i1:
        return None
    constancy = cg.axis.get(value).constancy
    return run_index(fragment_of(value), constancy) if max(constancy) > 1 else None


@lru_cache(maxsize=2048)
def run_index(frag: Fragment, constancy: tuple[int, ...]) -> Index:
    """Which registers lie in one run of these lengths, in every thread alike."""
    shifts = [(c & -c).bit_length() - 1 for c in constancy]
    seen: dict[tuple[int, ...], int] = {}
    index = []
    for place in frag.register_coords:
        # The thread's part has none of the bits of a register's part.
        run = tuple(map(operator.rshift, place, shifts))
        index.append(seen.setdefault(run, len(seen)))
    return tuple(index)


def number(op: Op) -> Scalar:
    """The element type of the first operand; fp8 has no arithmetic."""
    t = scalar_of(op.operands[0].type)
    if t.is_float and t.bits == 8:
        raise CompilationError(f"{op.name.removeprefix('tile.')} is not defined for {t}", op.loc,
                               "cast to f16 or f32 first")
    return t


def in_f32(f: Callable[..., Reg]) -> Callable[..., Reg]:
    """`f` with bf16 widened to f32 where the target has no bf16 arithmetic; the result rounds once
    more, which for one of + - * is as if it rounded once."""
    def rule(cg: CodeGen, op: Any, *args: Reg) -> Reg:
        if args[0].elem != "bfloat" or cg.target.has("add.bf16"):
            return f(cg, op, *args)
        wide = [casts.bf16_to_f32(cg.e, a) for a in args]
        return casts.f32_to_bf16(cg, f(cg, op, *wide))
    return rule


# The instructions for booleans, integers and floats.
_ARITHMETIC: dict[type[Op], tuple[str, str, str]] = {
    ops.Add: ("xor", "add", "fadd"), ops.Sub: ("xor", "sub", "fsub"),
    ops.Mul: ("and", "mul", "fmul")}


@compute(ops.Add, ops.Sub, ops.Mul)
@in_f32
def _arithmetic(cg: CodeGen, op: Op, a: Reg, b: Reg) -> Reg:
    t, (boolean, integer, real) = number(op), _ARITHMETIC[type(op)]
    return cg.e.binary(boolean if t.is_bool else real if t.is_float else integer, a, b)


@compute(ops.Fma)
def _fma(cg: CodeGen, op: ops.Fma, a: Reg, b: Reg, c: Reg) -> Reg:
    number(op)
    return cg.e.generic("fma", a, b, c)


@compute(ops.Div)
def _div(cg: CodeGen, op: ops.Div, a: Reg, b: Reg) -> Reg:
    t, e = number(op), cg.e
    if t.is_bool:
        return e.binary("and", a, b)
    if t.is_float:
        return divide(cg, a, b, op.rounded)
    quotient = e.binary("sdiv" if t.is_signed else "udiv", a, _divisor(cg, op.rhs, b, t.is_signed))
    if not t.is_signed or not _may_be(cg, op.rhs, -1):
        return quotient
    minus_one = e.compare("eq", b, e.const(-1, b.elem, b.n))
    return e.select(minus_one, e.binary("sub", e.const(0, a.elem, a.n), a), quotient)


@compute(ops.Rem)
def _rem(cg: CodeGen, op: ops.Rem, a: Reg, b: Reg) -> Reg:
    t, e = number(op), cg.e
    if t.is_bool:
        return e.const(False, "i1", a.n)
    if t.is_float:
        return _fmod(cg, a, b)
    return e.binary("srem" if t.is_signed else "urem", a, _divisor(cg, op.rhs, b, t.is_signed))


def _may_be(cg: CodeGen, value: Value, number: int) -> bool:
    numbers = cg.axis.get(value).range
    return numbers is None or number in numbers


def _divisor(cg: CodeGen, value: Value, b: Reg, signed: bool) -> Reg:
    """b with 0 replaced by 1, and -1 if it is signed: LLVM leaves undefined what is divided by 0,
    and so takes b for another number wherever else it is looked at, and the least integer / -1."""
    e = cg.e
    one, two, zero = (e.const(n, b.elem, b.n) for n in (1, 2, 0))
    if signed and _may_be(cg, value, -1):
        shifted = e.binary("add", b, one)  # 0 and 1 of an unsigned number
        return e.select(e.compare("ult", shifted, two), one, b)
    if _may_be(cg, value, 0):
        return e.select(e.compare("eq", b, zero), one, b)
    return b


def divide(cg: CodeGen, a: Reg, b: Reg, rounded: bool = False) -> Reg:
    """a / b: correctly rounded in f64, in f32 if `rounded` and else within 2 ulp; narrow floats by
    way of f32."""
    e = cg.e
    if a.elem == "double" or rounded and a.elem == "float":
        return e.binary("fdiv", a, b)
    if a.elem != "float":
        wide = divide(cg, casts.to_f32(cg, a), casts.to_f32(cg, b))
        return casts.from_f32(cg, wide, a.elem)
    return e.per_lane(lambda x, y: e.call("llvm.nvvm.div.full", "float", 0, (x, y)), a, b)


def _fmod(cg: CodeGen, a: Reg, b: Reg) -> Reg:
    e = cg.e
    if a.elem not in ("float", "double"):
        wide = _fmod(cg, casts.to_f32(cg, a), casts.to_f32(cg, b))
        return casts.from_f32(cg, wide, a.elem)
    quotient = e.generic("trunc", divide(cg, a, b))
    minus = e.fneg(quotient)
    rest = e.generic("fma", minus, b, a)
    infinite = e.compare("oeq", e.generic("fabs", b), e.const(float("inf"), a.elem, a.n))
    # a + (a - a) is a, or NaN where a is infinite.
    itself = e.binary("fadd", a, e.binary("fsub", a, a))
    return e.generic("copysign", e.select(infinite, itself, rest), a)


@compute(ops.Minimum, ops.Maximum)
def _extremum(cg: CodeGen, op: ops.Minimum | ops.Maximum, a: Reg, b: Reg) -> Reg:
    which, name = ("min", "minimum") if isinstance(op, ops.Minimum) else ("max", "maximum")
    t, e = number(op), cg.e
    if t.is_bool:
        return e.binary("and" if which == "min" else "or", a, b)
    if not t.is_float:
        return e.generic(("s" if t.is_signed else "u") + which, a, b)
    if t.bits != 64:
        return e.generic(name if op.propagate_nan else name + "num", a, b)
    best = e.generic(name + "num", a, b)
    if not op.propagate_nan:
        return best
    return e.select(e.compare("uno", a, b), e.const(float("nan"), a.elem, a.n), best)


@compute(ops.And, ops.Or, ops.Xor)
def _bitwise(cg: CodeGen, op: Op, a: Reg, b: Reg) -> Reg:
    return cg.e.binary(op.name.removeprefix("tile."), a, b)


@compute(ops.Not)
def _not(cg: CodeGen, op: ops.Not, a: Reg) -> Reg:
    return cg.e.binary("xor", a, cg.e.const(-1, a.elem, a.n))


def _constant_shift(cg: CodeGen, op: Any) -> int | None:
    known = cg.axis.get(op.rhs).constant
    return known if known is not None and 0 <= known < scalar_of(op.lhs.type).bits else None


@compute(ops.Shl)
def _shl(cg: CodeGen, op: ops.Shl, a: Reg, b: Reg) -> Reg:
    return _shift(cg, op, "shl", a, b)


@compute(ops.Shr)
def _shr(cg: CodeGen, op: ops.Shr, a: Reg, b: Reg) -> Reg:
    t, e = scalar_of(op.lhs.type), cg.e
    if not t.is_signed:
        return _shift(cg, op, "lshr", a, b)
    known = _constant_shift(cg, op)
    amount = e.const(known, a.elem, a.n) if known is not None else \
        e.generic("umin", b, e.const(t.bits - 1, a.elem, a.n))
    return e.binary("ashr", a, amount)


def _shift(cg: CodeGen, op: Any, opcode: str, a: Reg, b: Reg) -> Reg:
    """Zero for counts of the width and more; LLVM leaves those undefined, so they are kept out."""
    t, e = scalar_of(op.lhs.type), cg.e
    if t.is_bool:
        return e.binary("and", a, e.binary("xor", b, e.const(True, "i1", b.n)))
    known = _constant_shift(cg, op)
    if known is not None:
        return e.binary(opcode, a, e.const(known, a.elem, a.n))
    inside = e.compare("ult", b, e.const(t.bits, a.elem, a.n))
    if t.bits == 64:
        # LLVM would drop the compare and shift by the low 32 bits of the count.
        b = e.generic("umin", b, e.const(63, a.elem, a.n))
    return e.select(inside, e.binary(opcode, a, b), e.const(0, a.elem, a.n))


@compute(ops.Cmp)
def _cmp(cg: CodeGen, op: ops.Cmp, a: Reg, b: Reg) -> Reg:
    t, predicate = number(op), op.predicate
    if t.is_float:
        return cg.e.compare("une" if predicate == "ne" else "o" + predicate, a, b)
    if predicate in ("eq", "ne"):
        return cg.e.compare(predicate, a, b)
    return cg.e.compare(("s" if t.is_signed else "u") + predicate, a, b)


@compute(ops.Select)
def _select(cg: CodeGen, op: ops.Select, cond: Reg, a: Reg, b: Reg) -> Reg:
    return cg.e.select(cond, a, b)


@compute(ops.Neg)
def _neg(cg: CodeGen, op: ops.Neg, a: Reg) -> Reg:
    t, e = scalar_of(op.x.type), cg.e
    if t.is_bool:
        return a
    if t.is_float and t.bits <= 16:
        bits = e.bitcast(a, f"i{t.bits}", a.n)
        return e.bitcast(e.int_op("xor", bits, 1 << (t.bits - 1)), a.elem, a.n)
    if t.is_float:
        return e.fneg(a)
    return e.binary("sub", e.const(0, a.elem, a.n), a)


@compute(ops.Abs)
def _abs(cg: CodeGen, op: ops.Abs, a: Reg) -> Reg:
    t, e = scalar_of(op.x.type), cg.e
    if not t.is_float:
        if not t.is_signed:
            return a
        return e.select(e.compare("slt", a, e.const(0, a.elem, a.n)),
                        e.binary("sub", e.const(0, a.elem, a.n), a), a)
    if t.bits > 16:
        return e.generic("fabs", a)
    bits = e.bitcast(a, f"i{t.bits}", a.n)
    return e.bitcast(e.int_op("and", bits, (1 << (t.bits - 1)) - 1), a.elem, a.n)


@compute(ops.Hint)
def _hint(cg: CodeGen, op: ops.Hint, a: Reg) -> Reg:
    return a
