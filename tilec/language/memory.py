"""Loads, stores and atomics through pointers."""

from __future__ import annotations

from typing import Any

from tilec.errors import shown
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.ops.memory import CACHE_LOAD, CACHE_STORE, EVICTION, has_atomic
from tilec.language import dtypes as dt
from tilec.language.block_pointers import block_pointer, inside, pointers
from tilec.language.casting import common_shape, convert, spread
from tilec.language.context import current, error
from tilec.language.literals import convert as value_in
from tilec.language.literals import literal_dtype
from tilec.language.semantic import emit, shapes_of
from tilec.language.values import (
    builtin,
    const_ints,
    const_value,
    constant,
    describe,
    is_number,
    method,
    tensor,
    to_tensor,
)


def pointer_of(pointer: Any, what: str) -> tensor:
    """The pointer, or tile of them; CompilationError for anything else."""
    if isinstance(pointer, tensor) and pointer.dtype.is_ptr():
        return pointer
    advice = f"write a pointer argument plus offsets: {what}(x_ptr + offs, ...)"
    if isinstance(pointer, tensor) and pointer.dtype.is_int():
        advice += "; an address becomes one by `.to(tl.pointer_type(tl.float32))`"
    raise error(f"{what}: expected a pointer, found {describe(pointer)}", advice)


def writable(pointer: Any, what: str) -> tensor:
    """The pointer; CompilationError if it is none, or a const one."""
    x = pointer_of(pointer, what)
    if isinstance(x.dtype, dt.pointer_type) and x.dtype.const:
        raise error(f"{what}: cannot write through {x}",
                    "the parameter is annotated `tl.const`, which promises that it is only read")
    return x


def _choice(value: Any, name: str, choices: tuple[str, ...], what: str) -> str:
    value = const_value(value, name)
    value = "" if value is None else value
    if value not in choices:
        raise error(f"{what}: {name} is {shown(value)}, expected one of "
                    f"{', '.join(repr(c) for c in choices if c)}", "leave it out for the default")
    return str(value)


def mask_of(mask: Any, shape: tuple[int, ...], what: str) -> Value | None:
    """The mask as int1 of `shape`; None if it is known to hold everywhere."""
    if mask is None or mask is True:
        return None
    if is_number(mask):
        return constant(mask, dt.int1, shape).handle if not mask else None
    if not isinstance(mask, tensor) or not mask.dtype.is_bool():
        raise error(f"{what}: the mask is {describe(mask)}, expected int1",
                    "compare: `offs < n`; for integers, `mask != 0`")
    return spread(mask, shape).handle


def filled(value: Any, t: dt.dtype, shape: tuple[int, ...]) -> Value:
    """A value converted to `t` as a store does, and broadcast; a number has a literal's type."""
    if is_number(value):
        return constant(value_in(value, literal_dtype(value)), t, shape).handle
    return spread(convert(to_tensor(value), t), shape).handle


def pointee_of(pointer: tensor) -> dt.dtype:
    """What a pointer, or a tile of them, points at."""
    kind = pointer.dtype
    assert isinstance(kind, dt.pointer_type)
    return kind.element_ty


def _refuse_tiles(what: str, **values: Any) -> None:
    """CompilationError for a tile beside a scalar pointer."""
    for name, value in values.items():
        if isinstance(value, tensor) and value.shape:
            raise error(f"{what}: found {value} as {name}, but the pointer is a scalar",
                        "make a tile of pointers by adding offsets: `ptr + tl.arange(0, BLOCK)`")


def _fit(pointer: tensor, what: str, **values: Any) -> None:
    """CompilationError unless each value broadcasts to the pointer's shape."""
    if not pointer.shape:
        _refuse_tiles(what, **values)
    for name, value in values.items():
        shape = common_shape(f"{what}, pointer and {name}", pointer.shape, *shapes_of((value,)))
        if shape != pointer.shape:
            raise error(f"{what}: {name} and pointer differ: {value} and {pointer}",
                        f"the {name} must broadcast to the shape of the pointer")


PADDINGS = {"": None, "zero": 0, "nan": float("nan")}


def _no_block(pointer: Any, what: str, **given: Any) -> None:
    """CompilationError for arguments that only a block pointer takes."""
    for name, value in given.items():
        if value:
            raise error(f"{what}: {name} is given, but {describe(pointer)} is no block pointer",
                        "give a mask, or make the pointer by tl.make_block_ptr")


def _block(x: block_pointer, boundary_check: Any, what: str, **given: Any
           ) -> tuple[tensor, tensor | None]:
    """(pointers, mask) of a block pointer; `given`: what only other pointers take."""
    for name, value in given.items():
        if value is not None:
            raise error(f"{what}: {name} is given with a block pointer",
                        "boundary_check=(0, 1) masks off what lies outside of the matrix")
    rank = len(x.block_shape)
    checked = const_ints(() if boundary_check is None else boundary_check, "boundary_check")
    for d in checked:
        if not 0 <= d < rank:
            raise error(f"{what}: boundary_check names dimension {d} of a block of {rank}",
                        f"expected 0 to {rank - 1}")
    return pointers(x), inside(x, sorted(set(checked)))


def _padding(x: block_pointer, mask: tensor | None, option: Any) -> Any:
    """What `other` is for lanes outside of the matrix."""
    option = "" if option is None else const_value(option, "padding_option")
    if option not in PADDINGS:
        raise error(f"tl.load: padding_option is {shown(option)}, expected 'zero' or 'nan'",
                    "leave it out where nobody looks at elements outside")
    if option and mask is None:
        raise error("tl.load: padding_option is given without boundary_check",
                    "name the dimensions to check: boundary_check=(0, 1)")
    if option == "nan" and not pointee_of(x.base).is_floating():
        raise error(f"tl.load: padding_option is 'nan' for {pointee_of(x.base)}",
                    "integers have no NaN; use 'zero'")
    return PADDINGS[option]


@builtin
def load(pointer: Any, mask: Any = None, other: Any = None, *, boundary_check: Any = (),
         padding_option: str = "", cache_modifier: str = "", eviction_policy: str = "",
         volatile: bool = False) -> tensor:
    """What `pointer`, a pointer or a tile of them, points at: same shape, the pointee's dtype.

    mask: int1; pointer, mask and other broadcast together; lanes where it is false touch no
    memory and give `other` (converted to the pointee's dtype), or without `other` poison.
    cache_modifier: ".ca", ".cg" or ".cv"; eviction_policy: "evict_first", "evict_last" or
    "evict_normal"; volatile keeps the access. Errors: no pointer, a mask that is no int1, `other`
    without `mask`, a tile beside a scalar pointer.

    A block pointer takes no mask: lanes outside of the matrix along the dimensions that
    boundary_check names give padding_option: "zero", "nan", or "" for poison.
    """
    if isinstance(pointer, block_pointer):
        block = pointer
        pointer, mask = _block(block, boundary_check, "tl.load", mask=mask, other=other)
        other = _padding(block, mask, padding_option)
    else:
        _no_block(pointer, "tl.load", boundary_check=boundary_check, padding_option=padding_option)
    pointer = pointer_of(pointer, "tl.load")
    if other is not None and mask is None:
        raise error("tl.load: `other` is given without `mask`",
                    "`other` fills the lanes that the mask turns off; give a mask, or leave it out")
    if not pointer.shape:
        _refuse_tiles("tl.load", mask=mask, other=other)
    shape = common_shape("tl.load, pointer, mask and other", pointer.shape,
                         *shapes_of((mask, other)))
    masked = mask_of(mask, shape, "tl.load")
    fill = None if other is None or masked is None else filled(other, pointee_of(pointer), shape)
    op = ops.Load(spread(pointer, shape).handle, masked, fill,
                  cache=_choice(cache_modifier, "cache_modifier", CACHE_LOAD, "tl.load"),
                  eviction=_choice(eviction_policy, "eviction_policy", EVICTION, "tl.load"))
    if const_value(volatile, "volatile"):
        op.volatile = True
    return emit(op)


@builtin
def store(pointer: Any, value: Any, mask: Any = None, *, boundary_check: Any = (),
          cache_modifier: str = "", eviction_policy: str = "") -> None:
    """Write `value`, converted to the pointee's dtype, through `pointer` where `mask` holds.

    value and mask broadcast to the pointer's shape. cache_modifier: ".wb", ".cg", ".cs" or ".wt";
    eviction_policy as for `load`. A block pointer takes no mask: what lies outside of the matrix
    along the dimensions that boundary_check names is not written. Errors: no pointer or a const
    one, a mask that is no int1, shapes that do not broadcast.
    """
    if isinstance(pointer, block_pointer):
        pointer, mask = _block(pointer, boundary_check, "tl.store", mask=mask)
    else:
        _no_block(pointer, "tl.store", boundary_check=boundary_check)
    pointer = writable(pointer, "tl.store")
    _fit(pointer, "tl.store", value=value, mask=mask)
    masked = mask_of(mask, pointer.shape, "tl.store")
    op = ops.Store(pointer.handle, filled(value, pointee_of(pointer), pointer.shape), masked,
                   cache=_choice(cache_modifier, "cache_modifier", CACHE_STORE, "tl.store"),
                   eviction=_choice(eviction_policy, "eviction_policy", EVICTION, "tl.store"))
    current().builder.insert(op)


# -- atomics --------------------------------------------------------------------------------------

_ORDERS, _SCOPES = ("acq_rel", "acquire", "release", "relaxed"), ("gpu", "cta", "sys")
_NUMBERS = (dt.int16, dt.uint16, dt.int32, dt.uint32, dt.int64, dt.uint64, dt.float16, dt.bfloat16,
            dt.float32, dt.float64)


def check_atomic(kind: str, t: dt.dtype, what: str) -> None:
    """CompilationError for a dtype that has no such atomic."""
    if not has_atomic(kind, t.ir):
        *known, last = (str(n) for n in _NUMBERS if has_atomic(kind, n.ir))
        raise error(f"{what}: there is no atomic {kind} of {t}",
                    f"use {', '.join(known)} or {last}")


def _operands(kind: str, pointer: Any, mask: Any, sem: Any, scope: Any, **given: Any
              ) -> tuple[list[Value], Value | None, dict[str, Any]]:
    """(pointer and what is given, mask, attributes) of an atomic, checked."""
    what = f"tl.atomic_{kind}"
    pointer = writable(pointer, what)
    pointee = pointee_of(pointer)
    check_atomic(kind, pointee, what)
    _fit(pointer, what, **given, mask=mask)
    masked = mask_of(mask, pointer.shape, what)
    values = [filled(value, pointee, pointer.shape) for value in given.values()]
    return [pointer.handle, *values], masked, {
        "sem": _choice("acq_rel" if sem is None else sem, "sem", _ORDERS, what),
        "scope": _choice("gpu" if scope is None else scope, "scope", _SCOPES, what)}


def _update(kind: str, pointer: Any, val: Any, mask: Any, sem: Any, scope: Any) -> tensor:
    operands, masked, order = _operands(kind, pointer, mask, sem, scope, value=val)
    return emit(ops.AtomicRmw(*operands, masked, kind=kind, **order))


@method("atomic_add")
@builtin
def atomic_add(pointer: Any, val: Any, mask: Any = None, sem: str | None = None,
               scope: str | None = None) -> tensor:
    """Add `val` to what `pointer` points at, one atomic operation a lane where `mask` holds.

    Gives the values found before, poison where the mask is false. val, mask: broadcast to the
    pointer's shape; val is converted to the pointee's dtype, which is 32- or 64-bit int or any
    float but fp8. sem: "acquire", "release", "acq_rel" (default) or "relaxed"; scope: "gpu"
    (default), "cta" or "sys".
    """
    return _update("add", pointer, val, mask, sem, scope)


@method("atomic_max")
@builtin
def atomic_max(pointer: Any, val: Any, mask: Any = None, sem: str | None = None,
               scope: str | None = None) -> tensor:
    """Put the greater of `val` and what `pointer` points at there. Like `atomic_add`; -0.0 is less
    than 0.0, and where a NaN meets a number either may stay."""
    return _update("max", pointer, val, mask, sem, scope)


@method("atomic_min")
@builtin
def atomic_min(pointer: Any, val: Any, mask: Any = None, sem: str | None = None,
               scope: str | None = None) -> tensor:
    """Put the lesser of `val` and what `pointer` points at there; see `atomic_max`."""
    return _update("min", pointer, val, mask, sem, scope)


@method("atomic_and")
@builtin
def atomic_and(pointer: Any, val: Any, mask: Any = None, sem: str | None = None,
               scope: str | None = None) -> tensor:
    """Keep the bits of what `pointer` points at that `val` has, too. Like `atomic_add`, for 32- and
    64-bit integers."""
    return _update("and", pointer, val, mask, sem, scope)


@method("atomic_or")
@builtin
def atomic_or(pointer: Any, val: Any, mask: Any = None, sem: str | None = None,
              scope: str | None = None) -> tensor:
    """Set the bits of `val` in what `pointer` points at. Like `atomic_add`, for 32- and 64-bit
    integers."""
    return _update("or", pointer, val, mask, sem, scope)


@method("atomic_xor")
@builtin
def atomic_xor(pointer: Any, val: Any, mask: Any = None, sem: str | None = None,
               scope: str | None = None) -> tensor:
    """Flip the bits of `val` in what `pointer` points at. Like `atomic_add`, for 32- and 64-bit
    integers."""
    return _update("xor", pointer, val, mask, sem, scope)


@method("atomic_xchg")
@builtin
def atomic_xchg(pointer: Any, val: Any, mask: Any = None, sem: str | None = None,
                scope: str | None = None) -> tensor:
    """Put `val` where `pointer` points. Like `atomic_add`, for integers and floats of 32 and 64
    bits."""
    return _update("xchg", pointer, val, mask, sem, scope)


@method("atomic_cas")
@builtin
def atomic_cas(pointer: Any, cmp: Any, val: Any, sem: str | None = None,
               scope: str | None = None) -> tensor:
    """Put `val` where `pointer` points if the bits of `cmp` are there, one atomic operation a lane.

    Gives the values found before. cmp, val: broadcast to the pointer's shape and converted to the
    pointee's dtype, which has 16, 32 or 64 bits. sem, scope: as for `atomic_add`.
    """
    operands, _, order = _operands("cas", pointer, None, sem, scope, cmp=cmp, value=val)
    return emit(ops.AtomicCas(*operands, **order))
