"""Types of the IR: scalars, pointers, tensors, shared-memory buffers, tensor maps, tokens.

All are immutable and compare by value. A tensor's layout is None at the `tile` level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from tilec.ir.fragment import split_extent
from tilec.ir.layouts import Layout, same_layout


class Type:
    """Base of all types; `str(t)` is the text form."""


@dataclass(frozen=True)
class Scalar(Type):
    """A number. kind is "int", "uint" or "float"; i1 is the boolean, one byte in memory.

    mantissa: explicit mantissa bits of a float; 0 for integers.
    """

    name: str
    kind: str
    bits: int
    mantissa: int = 0

    def __str__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        return self.kind != "float"

    @property
    def is_signed(self) -> bool:
        return self.kind == "int" and self.bits > 1

    @property
    def is_bool(self) -> bool:
        return self.bits == 1

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        return max(1, self.bits // 8)


i1 = Scalar("i1", "int", 1)
i8, i16, i32, i64 = (Scalar(f"i{b}", "int", b) for b in (8, 16, 32, 64))
u8, u16, u32, u64 = (Scalar(f"u{b}", "uint", b) for b in (8, 16, 32, 64))
f8e4m3 = Scalar("f8e4m3", "float", 8, 3)
f8e5m2 = Scalar("f8e5m2", "float", 8, 2)
f16 = Scalar("f16", "float", 16, 10)
bf16 = Scalar("bf16", "float", 16, 7)
f32 = Scalar("f32", "float", 32, 23)
f64 = Scalar("f64", "float", 64, 52)
SCALARS = {t.name: t for t in (i1, i8, i16, i32, i64, u8, u16, u32, u64,
                               f8e4m3, f8e5m2, f16, bf16, f32, f64)}


@dataclass(frozen=True)
class Pointer(Type):
    """A pointer to global memory; a const one may not be stored through."""

    pointee: Scalar
    const: bool = False

    def __str__(self) -> str:
        return f"ptr<{self.pointee}, const>" if self.const else f"ptr<{self.pointee}>"

    @property
    def bits(self) -> int:
        return 64

    @property
    def bytes(self) -> int:
        return 8


Element = Scalar | Pointer


@dataclass(frozen=True)
class Tensor(Type):
    """A tile: a shape of any positive extents, an element type and, below `tile`, a layout."""

    shape: tuple[int, ...]
    element: Element
    layout: Layout | None = None

    def __str__(self) -> str:
        return self.text(str)

    def text(self, show_layout: Callable[[Layout], str]) -> str:
        """The text form, with the layout printed by `show_layout` (an alias, or in full)."""
        dims = "".join(f"{n}x" for n in self.shape)
        tail = "" if self.layout is None else f", {show_layout(self.layout)}"
        return f"tensor<{dims}{self.element}{tail}>"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class MemDesc(Type):
    """A buffer in shared memory with a shared layout; with one dimension more than the layout, in
    front, it is an array of such buffers, one after another (the stages of a pipeline)."""

    shape: tuple[int, ...]
    element: Scalar
    layout: Layout

    @property
    def staged(self) -> bool:
        """Whether this is an array of buffers."""
        return len(self.shape) > self.layout.rank

    @property
    def stages(self) -> int:
        """How many buffers there are."""
        return self.shape[0] if self.staged else 1

    @property
    def tile_shape(self) -> tuple[int, ...]:
        """The shape of one buffer."""
        return self.shape[1:] if self.staged else self.shape

    def __str__(self) -> str:
        return self.text(str)

    def text(self, show_layout: Callable[[Layout], str]) -> str:
        """The text form, with the layout printed by `show_layout`."""
        dims = "".join(f"{n}x" for n in self.shape)
        return f"memdesc<{dims}{self.element}, {show_layout(self.layout)}>"


@dataclass(frozen=True)
class TensorMap(Type):
    """How the copy engine (TMA) sees a tensor in global memory: a kernel parameter. One copy moves
    a tile of this shape and element to or from a buffer with this layout; dimensions in front of
    those of the layout have extent 1. Extents and strides of the tensor are the launch's."""

    shape: tuple[int, ...]
    element: Scalar
    layout: Layout

    @property
    def tile_shape(self) -> tuple[int, ...]:
        """The shape of the tile in shared memory."""
        return self.shape[len(self.shape) - self.layout.rank:]

    def __str__(self) -> str:
        return self.text(str)

    def text(self, show_layout: Callable[[Layout], str]) -> str:
        """The text form, with the layout printed by `show_layout`."""
        dims = "".join(f"{n}x" for n in self.shape)
        return f"tensormap<{dims}{self.element}, {show_layout(self.layout)}>"


@dataclass(frozen=True)
class Token(Type):
    """Orders asynchronous operations."""

    def __str__(self) -> str:
        return "token"


def element_of(t: Type) -> Element:
    """The element of a tensor, or the scalar or pointer itself."""
    if isinstance(t, (Scalar, Pointer)):
        return t
    assert isinstance(t, Tensor), f"{t} has no element"
    return t.element


def scalar_of(t: Type) -> Scalar:
    """Like `element_of`, for values that are numbers."""
    element = element_of(t)
    assert isinstance(element, Scalar), f"{t} is not a number"
    return element


def pointee_of(t: Type) -> Scalar:
    """What a pointer, or the pointers of a tile, point to."""
    pointer = element_of(t)
    assert isinstance(pointer, Pointer), f"{t} is not a pointer"
    return pointer.pointee


def shape_of(t: Type) -> tuple[int, ...]:
    """The shape of a tensor or buffer; () for scalars and pointers."""
    return t.shape if isinstance(t, (Tensor, MemDesc)) else ()


def layout_of(t: Type) -> Layout | None:
    """The layout of a tensor; None for anything else."""
    return t.layout if isinstance(t, Tensor) else None


@lru_cache(4096)
def with_element(t: Type, element: Element) -> Type:
    """`t` with another element type, same shape and layout."""
    return replace(t, element=element) if isinstance(t, Tensor) else element


@lru_cache(4096)
def with_layout(t: Type, layout: Layout | None) -> Type:
    """`t` with another layout if it is a tensor; else `t`."""
    return replace(t, layout=layout) if isinstance(t, Tensor) else t


@lru_cache(4096)
def linear_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The power-of-two part of a shape, on which layouts are linear (see `fragment`)."""
    return tuple(split_extent(n)[1] for n in shape)


def refines(have: Type, want: Type) -> bool:
    """Whether `have` is `want`, but for a layout that `want` leaves free or spells differently."""
    if have is want or have == want:
        return True
    if not (isinstance(have, Tensor) and isinstance(want, Tensor)):
        return False
    if have.shape != want.shape or have.element != want.element:
        return False
    if want.layout is None:
        return True
    return have.layout is not None and \
        same_layout(have.layout, want.layout, linear_shape(have.shape))
