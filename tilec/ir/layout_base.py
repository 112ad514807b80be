"""What all named layouts share: value semantics, text, the cached linear form, field checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import ClassVar

from tilec.ir.bitmatrix import ByValue
from tilec.ir.linear import LinearLayout, tile_outs

Shape = tuple[int, ...]
Vectors = tuple[tuple[int, ...], ...]

LANES = 32


@dataclass(frozen=True, eq=False)
class Layout(ByValue):
    """Base of all named layouts; what counts to the compiler is equality of linear forms."""

    name: ClassVar[str] = ""

    @property
    def rank(self) -> int:
        raise NotImplementedError

    def to_linear(self, shape: Sequence[int]) -> LinearLayout:
        """The linear form for a shape of powers of two; ValueError where it cannot serve one."""
        return _to_linear(self, tuple(shape))

    def _build(self, shape: Shape) -> LinearLayout:
        raise NotImplementedError

    @cached_property
    def _key(self) -> tuple[object, ...]:
        return (self.name, *(getattr(self, f) for f in field_types(type(self))))

    def __str__(self) -> str:
        shown = ", ".join(f"{camel_case(f)} = {_text(getattr(self, f))}"
                          for f in field_types(type(self)))
        return f"{self.name}<{{{shown}}}>"


def field_types(cls: type[Layout]) -> dict[str, str]:
    """A layout class's fields in order, each with its annotation."""
    return {f.name: str(f.type) for f in fields(cls)}


@lru_cache(maxsize=8192)
def _to_linear(layout: Layout, shape: Shape) -> LinearLayout:
    if len(shape) != layout.rank:
        raise ValueError(f"{layout} has rank {layout.rank}, the shape {shape} has {len(shape)}")
    tile_outs(shape)
    return layout._build(shape)


@dataclass(frozen=True, eq=False)
class RegisterLayout(Layout):
    """A layout of a tile over registers, the 32 lanes of a warp, and warps."""

    @property
    def num_warps(self) -> int:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class SharedLayout(Layout):
    """A layout of a tile over element offsets in shared memory."""

    @property
    def dims_from_fastest(self) -> tuple[int, ...]:
        """The dimensions, the contiguous one first: the order of the parts of an odd extent."""
        return tuple(reversed(range(self.rank)))

    def permuted(self, order: Shape) -> SharedLayout:
        """The layout of the same memory with dimension i called order[i] before."""
        raise NotImplementedError


def check_powers(layout: Layout, *fields: str) -> None:
    """ValueError unless these fields, ints or tuples of ints, hold powers of two."""
    for field in fields:
        value = getattr(layout, field)
        for n in value if isinstance(value, tuple) else (value,):
            if n <= 0 or n & (n - 1):
                raise ValueError(
                    f"{layout.name}: {camel_case(field)} must hold powers of two, got {n}")


def check_order(name: str, order: Sequence[int], rank: int) -> None:
    """ValueError unless order is a permutation of the dimensions."""
    if sorted(order) != list(range(rank)):
        raise ValueError(
            f"{name}: order must list the dimensions 0..{rank - 1} once, got {list(order)}")


@lru_cache(maxsize=256)
def camel_case(field: str) -> str:
    """A field as IR text spells it: warpsPerCTA for warps_per_cta."""
    first, *rest = field.split("_")
    return first + "".join("CTA" if word == "cta" else word.capitalize() for word in rest)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    return str(value)
