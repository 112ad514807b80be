"""Element types as kernel authors name them, each around an IR type: `tl.float32`, `tl.int8`, ...

`from_any` reads the dtypes of numpy, torch and ml_dtypes by name, without importing any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

from tilec.errors import CompilationError, did_you_mean, shown
from tilec.ir import types as ir
from tilec.language.context import CallableInKernels


class dtype:
    """An element type.

    name: "float32" or "int1" style, as Triton prints it ("fp32", "int32", "fp8e4nv");
    short: as in signatures ("fp32", "i32"); ir: the IR type, None for void; numpy_name: the name
    that numpy or ml_dtypes use.
    """

    def __init__(self, name: str, short: str, ir_type: ir.Element | None,
                 numpy_name: str = "") -> None:
        self.name = name
        self.short = short
        self.ir = ir_type
        self.numpy_name = numpy_name or name

    # -- size ---------------------------------------------------------------------------------

    @property
    def primitive_bitwidth(self) -> int:
        """Bits of a value; 1 for bool, 0 for void."""
        return 0 if self.ir is None else self.ir.bits

    @property
    def itemsize(self) -> int:
        """Bytes in memory."""
        return max(1, self.primitive_bitwidth // 8)

    @property
    def int_bitwidth(self) -> int:
        """Bits of an integer type."""
        return self.primitive_bitwidth

    @property
    def fp_mantissa_width(self) -> int:
        """Explicit mantissa bits of a float type, 0 for others."""
        return self.ir.mantissa if isinstance(self.ir, ir.Scalar) else 0

    # -- kind ---------------------------------------------------------------------------------

    def kind(self) -> int:
        """0 for bool, 1 for integers, 2 for floats: a Python number adopts a kind at least its
        own; 3 for the rest."""
        if not isinstance(self.ir, ir.Scalar):
            return 3
        return 2 if self.ir.is_float else 0 if self.ir.is_bool else 1

    def is_floating(self) -> bool:
        """Whether this is a float type."""
        return self.kind() == 2

    def is_standard_floating(self) -> bool:
        """Whether this is float16, bfloat16, float32 or float64."""
        return self.is_floating() and not self.is_fp8()

    def is_int(self) -> bool:
        """Whether this is an integer type; bool counts as one."""
        return self.kind() < 2

    def is_int_signed(self) -> bool:
        """Whether this is a signed integer type; bool is not."""
        return isinstance(self.ir, ir.Scalar) and self.ir.is_signed

    def is_int_unsigned(self) -> bool:
        """Whether this is an unsigned integer type or bool."""
        return self.is_int() and not self.is_int_signed()

    def is_bool(self) -> bool:
        """Whether this is int1."""
        return self.kind() == 0

    def is_ptr(self) -> bool:
        """Whether this is a pointer type."""
        return isinstance(self.ir, ir.Pointer)

    def is_fp8(self) -> bool:
        """Whether this is one of the 8-bit float types."""
        return self.is_floating() and self.primitive_bitwidth == 8

    def is_void(self) -> bool:
        """Whether this is void."""
        return self.ir is None

    def is_block(self) -> bool:
        """Whether this is the type of a tile; see `block_type`."""
        return False

    # Attached below, with is_int8, is_fp32 and so on: Triton has one for each type.
    is_fp16: Callable[[], bool]
    is_bf16: Callable[[], bool]
    is_fp64: Callable[[], bool]

    @property
    def scalar(self) -> dtype:
        """The element type of a tile's type; this one for others."""
        return self

    # -- as a value ---------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dtype) and self.name == other.name and self.ir == other.ir

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"tl.{self.name}"


class pointer_type(dtype):
    """A pointer to elements of one type; a const one may not be stored through."""

    __tilec_builtin__ = CallableInKernels()

    def __init__(self, element_ty: dtype, const: bool = False) -> None:
        if not isinstance(element_ty, dtype) or not isinstance(element_ty.ir, ir.Scalar):
            raise CompilationError(f"a pointer to {element_ty!r} is not possible", None,
                                   "point to a number type such as tl.float32")
        mark = "const " if const else ""
        super().__init__(f"pointer<{mark}{element_ty.name}>",
                         f"*{'k' if const else ''}{element_ty.short}",
                         ir.Pointer(element_ty.ir, const), "int64")
        self.element_ty = element_ty
        self.const = const

    def __repr__(self) -> str:
        return f"tl.pointer_type({self.element_ty!r}{', const=True' if self.const else ''})"


class block_type(dtype):
    """The type of a tile: an element type (a pointer type too) and a shape."""

    def __init__(self, element_ty: dtype, shape: tuple[int, ...]) -> None:
        dims = "x".join(map(str, shape))
        super().__init__(f"<[{dims}], {element_ty.name}>", f"{dims}x{element_ty.short}",
                         element_ty.ir)
        self.element_ty = element_ty
        self.shape = tuple(shape)

    @property
    def scalar(self) -> dtype:
        return self.element_ty

    @property
    def numel(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def get_block_shapes(self) -> tuple[int, ...]:
        """The shape."""
        return self.shape

    def is_block(self) -> bool:
        return True


class const:
    """Annotation of a pointer parameter that the kernel only reads: `x_ptr: tl.const`."""


void = dtype("void", "void", None)
int1 = dtype("int1", "i1", ir.i1, "bool")
int8 = dtype("int8", "i8", ir.i8)
int16 = dtype("int16", "i16", ir.i16)
int32 = dtype("int32", "i32", ir.i32)
int64 = dtype("int64", "i64", ir.i64)
uint8 = dtype("uint8", "u8", ir.u8)
uint16 = dtype("uint16", "u16", ir.u16)
uint32 = dtype("uint32", "u32", ir.u32)
uint64 = dtype("uint64", "u64", ir.u64)
float8e5 = dtype("fp8e5", "fp8e5", ir.f8e5m2, "float8_e5m2")
float8e4nv = dtype("fp8e4nv", "fp8e4nv", ir.f8e4m3, "float8_e4m3fn")
float16 = dtype("fp16", "fp16", ir.f16, "float16")
bfloat16 = dtype("bf16", "bf16", ir.bf16, "bfloat16")
float32 = dtype("fp32", "fp32", ir.f32, "float32")
float64 = dtype("fp64", "fp64", ir.f64, "float64")
pi32_t = pointer_type(int32)

ALL = (int1, uint8, uint16, uint32, uint64, int8, int16, int32, int64,
       float8e5, float8e4nv, float16, bfloat16, float32, float64)


def _attach_test(t: dtype) -> None:
    def test(self: dtype) -> bool:
        return self.ir == t.ir

    test.__doc__ = f"Whether this is {t.name}."
    setattr(dtype, f"is_{t.name}", test)


for _type in ALL:
    _attach_test(_type)

_ALIASES = {"u1": int1, "float8e5": float8e5, "float8e4nv": float8e4nv, "half": float16,
            "float": float32, "double": float64, "int": int32, "long": int64, "short": int16,
            "char": int8, "byte": uint8}
_BY_NAME = {spelling: t for t in ALL
            for spelling in (t.name, t.short, t.numpy_name, str(t.ir))} | _ALIASES
_OF_IR: dict[ir.Element, dtype] = {t.ir: t for t in ALL if t.ir is not None}


def of_ir(element: ir.Element) -> dtype:
    """The dtype around an IR element type."""
    found = _OF_IR.get(element)
    if found is None:
        assert isinstance(element, ir.Pointer)
        found = _OF_IR[element] = pointer_type(_OF_IR[element.pointee], element.const)
    return found


@lru_cache(1024)
def from_name(name: str) -> dtype:
    """The dtype called `name`: Triton's, numpy's, torch's or the IR's spelling, "*" or "*k" in
    front for a pointer or a const pointer. CompilationError for an unknown name."""
    if name.startswith("*"):
        is_const = name.startswith("*k")
        return of_ir(ir.Pointer(_scalar(from_name(name[2 if is_const else 1:])), is_const))
    found = _BY_NAME.get(name.removeprefix("torch.").removeprefix("tl."))
    if found is None:
        raise CompilationError(f"`{name}` is not a type that tilec knows", None,
                               did_you_mean(name, _BY_NAME))
    return found


def _scalar(t: dtype) -> ir.Scalar:
    if not isinstance(t.ir, ir.Scalar):
        raise CompilationError(f"a pointer to {t} is not possible", None,
                               "point to a number type such as tl.float32")
    return t.ir


def from_any(x: Any) -> dtype:
    """The dtype that `x` means: a dtype, an IR type, a name, a dtype or scalar class of numpy,
    ml_dtypes or torch. CompilationError for anything else."""
    if isinstance(x, dtype):
        return x
    if isinstance(x, (ir.Scalar, ir.Pointer)):
        return of_ir(x)
    if isinstance(x, str):
        return from_name(x)
    name = getattr(x, "name", None) or getattr(x, "__name__", None)
    return from_name(name if isinstance(name, str) else shown(x))


def get_int_dtype(bitwidth: int, signed: bool) -> dtype:
    """The integer type of a width: int8 to int64, uint8 to uint64, int1 for 1."""
    return int1 if bitwidth == 1 else from_name(f"{'' if signed else 'u'}int{bitwidth}")


get_int_dtype.__tilec_builtin__ = True  # type: ignore[attr-defined]
