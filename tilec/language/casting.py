"""Conversions between dtypes, and broadcasting between shapes."""

from __future__ import annotations

from math import prod
from typing import Any

from tilec.errors import shown
from tilec.ir import ops
from tilec.ir import types as ir
from tilec.ir.ops.tile import MAX_ELEMENTS
from tilec.language import dtypes as dt
from tilec.language.context import current, error
from tilec.language.values import (
    builtin,
    const_value,
    constant,
    describe,
    is_number,
    method,
    tensor,
    to_tensor,
)

ROUNDINGS = ("rtne", "rtz")


def as_dtype(x: Any, what: str) -> dt.dtype:
    """The dtype that an argument means; CompilationError if it is none."""
    x = const_value(x, what)
    if isinstance(x, dt.block_type):  # as in `x.to(y.type)`
        x = x.scalar
    if isinstance(x, tensor) or is_number(x) or x is None:
        raise error(f"{what} has to be a dtype, found {describe(x)}",
                    "pass a type such as tl.float32, or another tile's `x.dtype`")
    found = dt.from_any(x)
    if found.ir is None:
        raise error(f"{what} is {found}, which no value has", "pass a type such as tl.float32")
    return found


# -- casts ----------------------------------------------------------------------------------------

def convert(x: tensor, t: dt.dtype, rounding: str | None = None) -> tensor:
    """`x` converted to `t` by value, as semantics.md section 5 says."""
    have = x.dtype
    if have == t:
        return x
    assert t.ir is not None
    if have.is_ptr() or t.is_ptr():
        return _convert_pointer(x, t)
    op = ops.Cast(x.handle, types=[ir.with_element(x.handle.type, t.ir)])
    if rounding == "rtz":
        op.rounding = rounding
    return tensor(current().builder.emit(op))


def reinterpret(x: tensor, t: dt.dtype) -> tensor:
    """The bits of `x` as `t`."""
    have = x.dtype
    if have == t:
        return x
    assert t.ir is not None
    bits = have.primitive_bitwidth, t.primitive_bitwidth
    if bits[0] != bits[1]:
        raise error(f"cannot bitcast {have} to {t}: {bits[0]} bits are not {bits[1]} bits",
                    "without bitcast=True the value is converted")
    op = ops.Bitcast(x.handle, types=[ir.with_element(x.handle.type, t.ir)])
    return tensor(current().builder.emit(op))


def _convert_pointer(x: tensor, t: dt.dtype) -> tensor:
    have = x.dtype
    address = (dt.int64, dt.uint64)
    if (have.is_ptr() or have in address) and (t.is_ptr() or t in address):
        return reinterpret(x, t)
    if t.is_bool():
        zero = constant(0, dt.int64, x.shape)
        op = ops.Cmp(reinterpret(x, dt.int64).handle, zero.handle, predicate="ne")
        return tensor(current().builder.emit(op))
    raise error(f"cannot cast {have} to {t}", "a pointer converts to tl.int64, tl.uint64 and "
                "other pointers only")


def _check_rounding(have: dt.dtype, t: dt.dtype, rounding: Any) -> str | None:
    if rounding is not None and rounding not in ROUNDINGS:
        raise error(f"fp_downcast_rounding is {rounding!r}, expected 'rtne' or 'rtz'",
                    "'rtne' rounds to nearest even, 'rtz' toward zero")
    if rounding is None or have == t:
        return None
    narrows = have.is_floating() and t.is_floating() and \
        have.primitive_bitwidth > t.primitive_bitwidth
    if not narrows:
        raise error(f"fp_downcast_rounding does not apply to a cast from {have} to {t}",
                    "it chooses the rounding of casts to a narrower float type; leave it out")
    if rounding == "rtz" and t.is_fp8():
        raise error(f"casts to {t} round to nearest even only", "leave fp_downcast_rounding out")
    return str(rounding)


@method("to", "cast")
@builtin
def cast(input: Any, dtype: Any, fp_downcast_rounding: str | None = None,
         bitcast: bool = False) -> tensor:
    """`input` converted to `dtype` by value, or with bitcast=True its bits reinterpreted.

    fp_downcast_rounding: "rtne" (default) or "rtz", for casts to a narrower float type. Errors:
    a bitcast between different widths; a pointer to anything but 64-bit integers and pointers.
    """
    x, t = to_tensor(input), as_dtype(dtype, "the dtype of a cast")
    if t.is_void():
        raise error(f"cannot cast {x} to void", "void has no values")
    if const_value(bitcast, "bitcast"):
        return reinterpret(x, t)
    rounding = _check_rounding(x.dtype, t, const_value(fp_downcast_rounding,
                                                       "fp_downcast_rounding"))
    if x.literal is not None:
        number = constant(x.literal, dt.int64 if t.is_ptr() else t)
        return reinterpret(number, t)
    return convert(x, t, rounding)


# -- broadcasting ---------------------------------------------------------------------------------

def splat(x: tensor, shape: tuple[int, ...]) -> tensor:
    """A tile of `shape` filled with the scalar `x`; `x` itself for the shape ()."""
    if not shape:
        return x
    assert isinstance(x.handle.type, (ir.Scalar, ir.Pointer))
    return tensor(current().builder.emit(
        ops.Splat(x.handle, types=[ir.Tensor(shape, x.handle.type)])))


def spread(x: tensor, shape: tuple[int, ...]) -> tensor:
    """`x` broadcast to `shape`, which it is known to fit."""
    have = x.shape
    if have == shape:
        return x
    if not have:
        return splat(x, shape)
    builder = current().builder
    handle = x.handle
    for _ in range(len(shape) - len(have)):
        handle = builder.emit(ops.ExpandDims(handle, axis=0))
    if ir.shape_of(handle.type) != shape:
        handle = builder.emit(ops.Broadcast(
            handle, types=[ir.Tensor(shape, ir.element_of(handle.type))]))
    return tensor(handle)


def common_shape(what: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that `shapes` broadcast to, as numpy does; CompilationError where they differ."""
    out = shapes[0]
    for shape in shapes[1:]:
        if shape == out or not shape:
            continue
        if not out:
            out = shape
            continue
        rank = max(len(out), len(shape))
        a, b = ((1,) * (rank - len(s)) + s for s in (out, shape))
        if any(m != n and m != 1 and n != 1 for m, n in zip(a, b, strict=True)):
            raise error(f"{what}: shapes {_shown(out)} and {_shown(shape)} do not broadcast",
                        _shape_advice(out, shape))
        out = tuple(n if m == 1 else m for m, n in zip(a, b, strict=True))
    return check_size(out, what)


def check_size(shape: tuple[int, ...], what: str) -> tuple[int, ...]:
    """`shape`; CompilationError if a tile of it has too many elements."""
    if prod(shape) > MAX_ELEMENTS:
        raise error(f"{what}: a tile of shape {_shown(shape)} has {shown(prod(shape))} elements, "
                    f"at most {MAX_ELEMENTS} are possible",
                    "use smaller tiles, in a loop or in more programs")
    return shape


def _shown(shape: tuple[int, ...]) -> str:
    return shown([*shape])


def _shape_advice(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    if len(a) == len(b) == 1:
        return "extents must be equal; for an outer product write x[:, None] and y[None, :]"
    return "extents must be equal or 1, counted from the right; x[:, None] and x[None, :] " \
        "insert dimensions of extent 1"
