"""The operators of `tensor`: promotion, broadcasting, and the op each one becomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from tilec.ir import ops
from tilec.ir.core import Op
from tilec.language import dtypes as dt
from tilec.language.casting import common_shape, convert, spread
from tilec.language.context import current, error
from tilec.language.literals import literal_dtype
from tilec.language.promotion import check_promotion, number_dtype
from tilec.language.values import (
    constant,
    describe,
    is_number,
    method,
    tensor,
    unwrap,
)


def emit(op: Op) -> tensor:
    """Insert `op` at the author's place; its result."""
    return tensor(current().builder.emit(op))


# -- operands -------------------------------------------------------------------------------------

def common_dtype(op: str, *values: Any) -> dt.dtype:
    """The dtype that the operator `op` computes in: tensors promote each other, then Python
    numbers adopt (rule 0) or promote the result. CompilationError where there is none."""
    tensors = [x for x in values if isinstance(x, tensor)]
    numbers = [x for x in values if not isinstance(x, tensor)]
    for x in numbers:
        if not is_number(x):
            others = ", ".join(describe(v) for v in values)
            advice = "compare with None by `is None`" if x is None else \
                "an operator takes tiles, scalars and numbers"
            raise error(f"`{op}` does not apply to {others}", advice)
    if tensors:
        result = tensors[0].dtype
    else:
        result, numbers = literal_dtype(numbers[0]), numbers[1:]
    for other in tensors[1:]:
        result = check_promotion(op, result, other.dtype)
    for x in numbers:
        result = check_promotion(op, result, number_dtype(x, result))
    return result


def moved_dtype(op: str, *values: Any) -> dt.dtype:
    """The dtype of values that `op` only moves: as `common_dtype`, or that of pointers, which are
    all of one type."""
    pointers = {x.dtype for x in values if isinstance(x, tensor) and x.dtype.is_ptr()}
    if not pointers:
        return common_dtype(op, *values)
    if len(pointers) > 1 or not all(isinstance(x, tensor) and x.dtype.is_ptr() for x in values):
        raise error(f"{op}: found {' and '.join(map(describe, values))}, expected pointers of one "
                    "type", "cast one of them, as by `.to(x_ptr.dtype)`")
    return pointers.pop()


def coerce(x: Any, t: dt.dtype, shape: tuple[int, ...]) -> tensor:
    """A tensor or number as a tensor of dtype `t`, broadcast to `shape`."""
    if not isinstance(x, tensor):
        return constant(x, t, shape)
    return spread(convert(x, t), shape)


def shapes_of(values: Sequence[Any]) -> list[tuple[int, ...]]:
    """The shape of each value; () for numbers."""
    return [x.shape if isinstance(x, tensor) else () for x in values]


def common_operands(op: str, *values: Any) -> list[tensor]:
    """The values as tensors of one dtype and shape, as the operator `op` computes them."""
    t = common_dtype(op, *values)
    shape = common_shape(f"`{op}`", *shapes_of(values))
    return [coerce(x, t, shape) for x in values]


def refuse_fp8(op: str, t: dt.dtype) -> None:
    """CompilationError if `t` is an fp8 type: those have no arithmetic."""
    if t.is_fp8():
        raise error(f"`{op}` is not defined on {t}",
                    "compute in a wider type, as by `.to(tl.float16)` or `.to(tl.float32)`")


def _require_integers(op: str, values: Sequence[Any], advice: str) -> None:
    for x in values:
        is_int = x.dtype.is_int() if isinstance(x, tensor) else isinstance(x, int)
        if not is_int:
            shown = " and ".join(describe(v) for v in values)
            raise error(f"`{op}` takes integers, found {shown}", advice)


# -- arithmetic -----------------------------------------------------------------------------------

def _operator(symbol: str, op_class: type[Op], integers: bool = False,
              **attributes: Any) -> Callable[[Any, Any], tensor]:
    """The function of an operator whose operands are promoted and broadcast to the result's type;
    integers: whether it takes no others."""
    def apply(lhs: Any, rhs: Any) -> tensor:
        if integers:
            _require_integers(symbol, (lhs, rhs), "compare first (`x != 0`), or reinterpret the "
                              "bits by `.to(tl.int32, bitcast=True)`")
        a, b = common_operands(symbol, lhs, rhs)
        refuse_fp8(symbol, a.dtype)
        return emit(op_class(a.handle, b.handle, **attributes))

    return apply


_add_numbers = _operator("+", ops.Add)
_sub_numbers = _operator("-", ops.Sub)
mul = _operator("*", ops.Mul)
mod = _operator("%", ops.Rem)


def _is_pointer(x: Any) -> bool:
    return isinstance(x, tensor) and x.dtype.is_ptr()


def add(lhs: Any, rhs: Any) -> tensor:
    """`lhs + rhs`: a sum of numbers, or a pointer moved by an integer number of elements."""
    if _is_pointer(lhs) or _is_pointer(rhs):
        pointer, offset = (lhs, rhs) if _is_pointer(lhs) else (rhs, lhs)
        return _move(pointer, offset, "+")
    return _add_numbers(lhs, rhs)


def sub(lhs: Any, rhs: Any) -> tensor:
    """`lhs - rhs`: a difference of numbers, or a pointer moved back."""
    if _is_pointer(rhs):
        raise error(f"`-` does not apply to {describe(lhs)} and {describe(rhs)}",
                    "for a distance, subtract addresses: `p.to(tl.int64) - q.to(tl.int64)`")
    if not _is_pointer(lhs):
        return _sub_numbers(lhs, rhs)
    if isinstance(rhs, tensor) and rhs.dtype.is_int():
        # An unsigned or least offset has its negative in 64 bits only.
        return _move(lhs, neg(convert(rhs, dt.int64)), "-")
    return _move(lhs, -rhs if is_number(rhs) else rhs, "-")


def _move(pointer: tensor, offset: Any, symbol: str) -> tensor:
    is_int = offset.dtype.is_int() if isinstance(offset, tensor) else isinstance(offset, int)
    if not is_int:
        raise error(f"`{symbol}` of {pointer} and {describe(offset)}: an offset is an integer",
                    "a pointer takes `+ int` and `- int`, counted in elements"
                    + ("; cast the offset by `.to(tl.int32)`" if isinstance(offset, tensor)
                       and offset.dtype.is_floating() else ""))
    if not isinstance(offset, tensor):
        offset = constant(offset, literal_dtype(int(offset)))
    elif offset.dtype.is_bool():
        offset = convert(offset, dt.int32)
    shape = common_shape(f"`{symbol}`", pointer.shape, offset.shape)
    return emit(ops.AddPtr(spread(pointer, shape).handle, spread(offset, shape).handle))


def truediv(lhs: Any, rhs: Any, rounded: bool = False) -> tensor:
    """`lhs / rhs`; integers divide as float32, float16 and bfloat16 too. rounded: correctly in
    float32, too."""
    t = common_dtype("/", lhs, rhs)
    refuse_fp8("/", t)
    shape = common_shape("`/`", *shapes_of((lhs, rhs)))
    t = dt.float32 if t.is_int() else t
    a, b = coerce(lhs, t, shape), coerce(rhs, t, shape)
    return emit(ops.Div(a.handle, b.handle, rounded=rounded and t == dt.float32))


def floordiv(lhs: Any, rhs: Any) -> tensor:
    """`lhs // rhs` of integers, toward zero."""
    _require_integers("//", (lhs, rhs), "use `/`, or tl.floor(x / y) for a float result")
    a, b = common_operands("//", lhs, rhs)
    return emit(ops.Div(a.handle, b.handle))


def neg(x: tensor) -> tensor:
    """`-x`."""
    if x.dtype.is_ptr():
        raise error(f"`-` does not apply to {x}", "a pointer cannot be negated")
    return emit(ops.Neg(x.handle))


# -- bits and shifts ------------------------------------------------------------------------------

and_ = _operator("&", ops.And, integers=True)
or_ = _operator("|", ops.Or, integers=True)
xor = _operator("^", ops.Xor, integers=True)
lshift = _operator("<<", ops.Shl, integers=True)


def rshift(lhs: Any, rhs: Any) -> tensor:
    """`lhs >> rhs` of integers: arithmetic if `lhs` is signed, else logical, whatever the sign of
    the promoted type."""
    _require_integers(">>", (lhs, rhs), "reinterpret the bits by `.to(tl.int32, bitcast=True)`")
    t = common_dtype(">>", lhs, rhs)
    shape = common_shape("`>>`", *shapes_of((lhs, rhs)))
    signed = lhs.dtype.is_int_signed() if isinstance(lhs, tensor) else t.is_int_signed()
    inner = t
    if signed != t.is_int_signed() and not t.is_bool():
        inner = dt.from_name(f"{'i' if signed else 'u'}{t.primitive_bitwidth}")
    out = emit(ops.Shr(coerce(lhs, inner, shape).handle, coerce(rhs, inner, shape).handle))
    return convert(out, t)


def invert(x: tensor) -> tensor:
    """`~x` of integers."""
    _require_integers("~", (x,), "for a condition, compare first: `~(x != 0)`")
    return emit(ops.Not(x.handle))


# -- comparisons and logic ------------------------------------------------------------------------

eq = _operator("==", ops.Cmp, predicate="eq")
ne = _operator("!=", ops.Cmp, predicate="ne")
lt = _operator("<", ops.Cmp, predicate="lt")
le = _operator("<=", ops.Cmp, predicate="le")
gt = _operator(">", ops.Cmp, predicate="gt")
ge = _operator(">=", ops.Cmp, predicate="ge")


def to_bool(x: Any, what: str = "a condition") -> tensor:
    """`x` as int1: itself, or `x != 0`. CompilationError for pointers and what is no number."""
    x = unwrap(x)
    if is_number(x):
        return constant(x, dt.int1)
    if not isinstance(x, tensor) or x.dtype.is_ptr():
        raise error(f"{what} has to be a bool or a number, found {describe(x)}",
                    "compare it with something; a pointer's address is `p.to(tl.int64)`")
    return convert(x, dt.int1)


def logical_and(lhs: Any, rhs: Any) -> tensor:
    """`lhs and rhs` of run-time values, both evaluated: int1."""
    return and_(to_bool(lhs, "an operand of `and`"), to_bool(rhs, "an operand of `and`"))


def logical_or(lhs: Any, rhs: Any) -> tensor:
    """`lhs or rhs` of run-time values, both evaluated: int1."""
    return or_(to_bool(lhs, "an operand of `or`"), to_bool(rhs, "an operand of `or`"))


def logical_not(x: Any) -> tensor:
    """`not x` of a run-time value: int1."""
    return invert(to_bool(x, "the operand of `not`"))


# -- as methods -----------------------------------------------------------------------------------

def _attach(name: str, fn: Callable[[Any, Any], tensor], reflected: bool) -> None:
    def forward(self: tensor, other: Any) -> tensor:
        return fn(self, unwrap(other))

    def backward(self: tensor, other: Any) -> tensor:
        return fn(unwrap(other), self)

    setattr(tensor, f"__{name}__", forward)
    if reflected:
        setattr(tensor, f"__r{name}__", backward)


for _name, _fn in {"add": add, "sub": sub, "mul": mul, "truediv": truediv, "floordiv": floordiv,
                   "mod": mod, "and": and_, "or": or_, "xor": xor, "lshift": lshift,
                   "rshift": rshift}.items():
    _attach(_name, _fn, reflected=True)
for _name, _fn in {"eq": eq, "ne": ne, "lt": lt, "le": le, "gt": gt, "ge": ge}.items():
    _attach(_name, _fn, reflected=False)
# A class that gains __eq__ this way keeps its own __hash__, by identity.
method("__neg__")(neg)
method("__invert__")(invert)
method("logical_and")(logical_and)
method("logical_or")(logical_or)


@method("__pos__")
def _pos(x: tensor) -> tensor:
    return x


@method("__pow__", "__rpow__")
def _pow(x: tensor, other: Any) -> NoReturn:
    raise error(f"`**` of {x} and {describe(other)}: a power is for compile-time numbers only",
                "multiply it out, or write tl.exp2(tl.log2(x) * y)")


@method("__matmul__", "__rmatmul__")
def _matmul(x: tensor, other: Any) -> NoReturn:
    raise error(f"`@` of {x} and {describe(other)} is not defined", "use tl.dot(a, b)")


@method("__setitem__")
def _setitem(x: tensor, key: Any, value: Any) -> NoReturn:
    raise error(f"cannot assign into {x}: tiles are values",
                "build a new one, as by tl.where(condition, new, old)")
