"""The meaning of each op with floats as integers modulo the prime 2^61 - 1 (TILEC_EVAL=ring).

A float m * 2^e becomes m * 2^e modulo the prime, so that sums and products of floats, and of
constants that a pass folds, are exact: programs that differ by the order of sums, or by a rounding
in one of them, agree to the last bit. All that rounds on purpose or is no sum (casts to fewer bits,
exp, division) is a function that nobody knows: a hash of its name and its operands. So other
programs almost surely do not agree. A number of few bits can be told from a hash: it is compared,
cast and stored as what it is, and whatever else is ordered by a hash, a total order. A cast to more
bits is the identity, and one to fewer bits of what has no more. Arithmetic of 16 bits is not
rounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache

import numpy as np

from tilec.eval.atomics import UPDATES, Update
from tilec.eval.casts import cast
from tilec.eval.dtypes import BF16, E4M3, E5M2, F16, F32, F64, Array, DType, dtype_of, is_float
from tilec.eval.mathfns import math_function
from tilec.eval.rules import Numbers, exact, instruction_products
from tilec.eval.rules import rule as plain
from tilec.ir import ops
from tilec.ir.core import Op
from tilec.ir.ops.elementwise import MathUnary
from tilec.ir.rules import Rules
from tilec.ir.types import Type, scalar_of

RING: DType = np.dtype(np.uint64)
BITS = 61
PRIME = np.uint64((1 << BITS) - 1)
INFINITY, NAN = np.uint64(0x1A51_D7E9_3C04_B86F), np.uint64(0x0C97_6B21_F5D8_E34A)
MANTISSA = {E5M2: 3, E4M3: 4, BF16: 8, F16: 11, F32: 24, F64: 53}
TF32_MANTISSA = 11
KNOWN = 24  # most bits of a number that is told from a hash
LIMB, LIMBS, PART = 21, 3, 1024  # a sum of PART products of limbs is exact in f64

rule = Rules("ring eval")


# -- the ring ---------------------------------------------------------------------------------

def _u(n: int) -> np.uint64:
    return np.uint64(n)


def rotated(x: Array, by: int | Array) -> Array:
    """x * 2^by, which is a rotation of 61 bits."""
    by = np.asarray(by % BITS, RING)
    return np.asarray(((x << by) & PRIME) | (x >> (_u(BITS) - by)))


def _reduced(x: Array) -> Array:
    x = np.asarray((x & PRIME) + (x >> _u(BITS)))
    return np.where(x >= PRIME, x - PRIME, x)


def add(a: Array, b: Array) -> Array:
    """a + b."""
    return _reduced(a + b)


def neg(a: Array) -> Array:
    """-a."""
    return np.where(a == 0, a, PRIME - a)


def mul(a: Array, b: Array) -> Array:
    """a * b, of halves of 31 bits."""
    low = _u((1 << 31) - 1)
    (a1, a0), (b1, b0) = ((x >> _u(31), x & low) for x in (a, b))
    middle = a1 * b0 + a0 * b1  # below 2^62, to be moved by 31 bits
    return _reduced(_reduced(_u(2) * (a1 * b1) + a0 * b0) + (middle >> _u(30))
                    + ((middle & _u((1 << 30) - 1)) << _u(31)))


def matmul(a: Array, b: Array) -> Array:
    """a @ b, as products of matrices of limbs, which f64 holds exactly."""
    def limbs(x: Array) -> list[Array]:
        return [((x >> _u(LIMB * i)) & _u((1 << LIMB) - 1)).astype(np.float64)
                for i in range(LIMBS)]

    out = np.zeros((1,) * a.ndim, RING)
    for k in range(0, a.shape[-1], PART):
        left, right = limbs(a[..., k:k + PART]), limbs(b[..., k:k + PART, :])
        for i, x in enumerate(left):
            for j, y in enumerate(right):
                part = rotated(np.matmul(x, y).astype(RING), LIMB * (i + j))
                out = add(out, part)
    return out


@np.errstate(all="ignore")
def embed(x: Array) -> Array:
    """Floats, or integers of any size, as elements of the ring; infinities and NaN are some."""
    if not is_float(x.dtype):
        wide = x.astype(np.int64) if x.dtype.kind != "u" else x.astype(RING)
        size = _reduced(np.abs(wide).astype(RING))
        return np.where(wide < 0, neg(size), size)
    wide = x.astype(np.float64)
    fraction, exponent = np.frexp(np.where(np.isfinite(wide), wide, 0.0))
    size = rotated(np.abs(fraction * 2.0**53).astype(RING), exponent.astype(np.int64) - 53)
    size = np.where(np.isinf(wide), INFINITY, size)
    return np.where(np.isnan(wide), NAN, np.where(wide < 0, neg(size), size))


def known(x: Array, bits: int = KNOWN) -> tuple[Array, Array]:
    """(values in f64, where they hold): numbers of at most so many bits and usual size."""
    value, holds = np.zeros(x.shape), np.zeros(x.shape, bool)
    most = _u(1 << bits)
    for exponent in range(-36, 25):
        size = rotated(x, -exponent)
        negative = PRIME - size
        found = ((size < most) | (negative < most)) & ~holds
        if found.any():
            signed = np.where(size < most, size.astype(np.float64), -negative.astype(np.float64))
            value = np.where(found, np.ldexp(signed, exponent), value)
            holds |= found
    for special, number in ((INFINITY, np.inf), (PRIME - INFINITY, -np.inf), (NAN, np.nan)):
        value, holds = np.where(x == special, number, value), holds | (x == special)
    return value, holds


@cache
def _salt(name: str) -> np.uint64:
    return _u(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"))


@np.errstate(over="ignore")
def unknown(name: str, *xs: Array) -> Array:
    """What a function that nobody knows gives: a hash, below 2^64, of its name and operands."""
    h = np.asarray(_salt(name))
    for x in xs:
        h = np.asarray(h ^ x.astype(RING)) * _u(0x9E37_79B9_7F4A_7C15)
        for shift, factor in ((30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB), (31, 1)):
            h = (h ^ (h >> _u(shift))) * _u(factor)
    return np.asarray(h)


def _odd(f: Callable[[Array], Array], x: Array) -> Array:
    """f(x), made a function for which f(-x) is -f(x)."""
    flip = x > PRIME - x
    out = f(np.where(flip, PRIME - x, x))
    return np.where(flip, neg(out), out)


def narrowed(x: Array, bits: int, name: str) -> Array:
    """Rounded to so many bits: what has no more stays, all else becomes some number of them."""
    def some(x: Array) -> Array:
        h = unknown(f"{name} of {bits} bits", x)
        return rotated(h & _u((1 << bits) - 1), (h >> _u(56)).astype(np.int64) % 16 - bits - 4)

    return np.where(known(x, bits)[1], x, _odd(some, x))


def encode(x: Array, dtype: DType) -> Array:
    """Floats that stand for elements of the ring in memory: equal ones for equal elements."""
    value, holds = known(x)
    h = unknown("memory", x)
    some = np.ldexp(1.0 + (h >> _u(12)).astype(np.float64) * 2.0**-52,
                    (h & _u(7)).astype(np.int64) - 4)
    exactly = value.astype(dtype)
    return np.where(holds & (embed(exactly) == x), exactly, some.astype(dtype))


# -- order ------------------------------------------------------------------------------------

def _key(x: Array) -> Array:
    """What ring elements are ordered by, first of all; changes its sign with them."""
    value, holds = known(x)
    flip = x > PRIME - x
    some = unknown("order", np.where(flip, PRIME - x, x)) / 2.0**62
    return np.where(holds, value, np.where(flip, -some, some))


def _less(a: Array, b: Array) -> Array:
    ka, kb = _key(a), _key(b)
    return np.asarray((ka < kb) | (ka == kb) & (a < b))


def _extreme(a: Array, b: Array, first: Array, propagate_nan: bool) -> Array:
    """`a` where `first`, else `b`; a NaN loses, or wins."""
    out = np.where(first, a, b)
    for one, other in ((a, b), (b, a)):
        out = np.where(one == NAN, one if propagate_nan else other, out)
    return out


def compare(a: Array, b: Array, predicate: str) -> Array:
    """predicate: lt, le, gt, ge, eq or ne; with a NaN only `ne` is true."""
    if predicate in ("gt", "ge"):
        a, b, predicate = b, a, {"gt": "lt", "ge": "le"}[predicate]
    equal, numbers = a == b, (a != NAN) & (b != NAN)
    if predicate == "ne":
        return np.asarray(~equal | ~numbers)
    less = _less(a, b) if predicate in ("lt", "le") else equal
    return np.asarray((less | equal if predicate == "le" else less) & numbers)


RING_UPDATES: dict[str, Update] = {
    **UPDATES, "add": add,
    "max": lambda old, new: np.where(_less(old, new), new, old),
    "min": lambda old, new: np.where(_less(new, old), new, old),
}


# -- rules ------------------------------------------------------------------------------------

def _of_floats(kind: type[Op], function: Callable[..., Array]) -> None:
    """Give ops of a kind their rule on floats; that on integers is the plain one."""
    @rule(kind)
    def _(op: Op, *operands: Array) -> Array:
        floats = scalar_of(op.operands[0].type).is_float
        return np.asarray((function if floats else plain[type(op)])(op, *operands))


def _divided(op: Op, a: Array, b: Array) -> Array:
    value, holds = known(b, 1)  # a power of two: the product with another one
    with np.errstate(divide="ignore"):
        return np.where(holds & (value != 0), mul(a, embed(1.0 / value)),
                        _reduced(unknown("tile.div", a, b)))


def _function(op: Op, x: Array) -> Array:
    some = _reduced(unknown(op.name, x))
    if not exact(op):
        return some
    value, holds = known(x)
    return np.where(holds, embed(math_function(op.name.removeprefix("tile."), value)), some)


def _cast(op: ops.Cast, x: Array) -> Array:
    old, new = (dtype_of(scalar_of(v.type)) for v in (op.x, op.result))
    if is_float(new):
        x = x if is_float(old) else embed(x)
        back = isinstance(op.x.op, ops.Cast) and op.x.op.x.type == op.result.type
        # What was made of as many bits is not rounded.
        return x if MANTISSA.get(old, 64) <= MANTISSA[new] or back and is_float(old) else \
            narrowed(x, MANTISSA[new], op.rounding)
    if new.kind == "b":
        return np.asarray(x != 0)
    value, holds = known(x)
    return np.where(holds, cast(value, new), (unknown("int", x) & _u(127)).astype(new))


@rule(ops.Cast)
def _(op: ops.Cast, x: Array) -> Array:
    floats = any(is_float(dtype_of(scalar_of(v.type))) for v in (op.x, op.result))
    return _cast(op, x) if floats else plain[ops.Cast](op, x)


@rule(ops.InlineAsm)
def _(op: ops.InlineAsm, *operands: Array) -> tuple[Array, ...]:
    """Functions that nobody knows, of one element each."""
    held = unknown(op.asm, *(x if is_float(dtype_of(scalar_of(v.type))) else embed(x)
                             for x, v in zip(operands, op.inputs, strict=True)))
    out = []
    for i, v in enumerate(op.results):
        some, new = unknown(f"result {i}", held), dtype_of(scalar_of(v.type))
        out.append(_reduced(some) if is_float(new) else (some & _u(127)).astype(new))
    return tuple(out)


@rule(ops.Bitcast)
def _(op: ops.Bitcast, x: Array) -> Array:
    old, new = dtype_of(scalar_of(op.x.type)), dtype_of(scalar_of(op.result.type))
    bits = encode(x, old) if is_float(old) else x
    return number(np.ascontiguousarray(bits).view(new))


@rule(ops.Constant)
def _(op: ops.Constant) -> Array:
    return number(plain[ops.Constant](op))


@rule(ops.Dot)
def _(op: ops.Dot, a: Array, b: Array, c: Array) -> Array:
    if op.input_precision == "tf32" and dtype_of(op.a.type) == F32:
        a, b = (narrowed(x, TF32_MANTISSA, "tf32") for x in (a, b))
    return add(matmul(a, b), c) if is_float(dtype_of(op.c.type)) else plain[ops.Dot](op, a, b, c)


for _kind, _meaning in (
        (ops.Add, lambda op, a, b: add(a, b)), (ops.Sub, lambda op, a, b: add(a, neg(b))),
        (ops.Mul, lambda op, a, b: mul(a, b)), (ops.Neg, lambda op, a: neg(a)),
        (ops.Fma, lambda op, a, b, c: add(mul(a, b), c)), (ops.Div, _divided),
        (ops.Rem, lambda op, a, b: _reduced(unknown("tile.rem", a, b))), (MathUnary, _function),
        (ops.Abs, lambda op, a: np.where(_key(a) < 0, neg(a), a)),
        (ops.Minimum, lambda op, a, b: _extreme(a, b, _less(a, b), op.propagate_nan)),
        (ops.Maximum, lambda op, a, b: _extreme(a, b, _less(b, a), op.propagate_nan)),
        (ops.Cmp, lambda op, a, b: compare(a, b, op.predicate))):
    _of_floats(_kind, _meaning)
# They know nothing of numbers, or nothing of floats.
for _same in (ops.And, ops.Or, ops.Xor, ops.Shl, ops.Shr, ops.Not, ops.Select, ops.Hint, ops.Arange,
              ops.ConvertLayout, ops.SetLayout, ops.AddPtr, ops.Splat, ops.Broadcast,
              ops.ExpandDims, ops.Reshape, ops.Trans, ops.Join, ops.Split, ops.ExtractSlice,
              ops.Gather, ops.Histogram):
    rule(_same)(plain[_same])


def number(x: Array) -> Array:
    """Floats as elements of the ring; all else as it is."""
    return embed(x) if is_float(x.dtype) else x


def _held(t: Type) -> DType:
    dtype = dtype_of(t)
    return RING if is_float(dtype) else dtype


def _products(a: Array, b: Array, c: Array, step: int) -> Array:
    return add(matmul(a, b), c) if c.dtype == RING else instruction_products(a, b, c, step)


IN_RING = Numbers(rule, _held, number, _products)
