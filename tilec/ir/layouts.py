"""Named layouts: readable constructors of linear layouts, frozen, hashable, printable.

A register layout says which lane of which warp holds each element of a tile and in which register;
a shared layout says at which element offset of a buffer it lies. `layout.to_linear(shape)` gives
the linear layout for a shape of powers of two. This module is the one to import: it adds text,
comparison and edits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import permutations
from math import prod

from tilec.ir.fragment import split_extent
from tilec.ir.layout_base import (
    LANES,
    Layout,
    RegisterLayout,
    Shape,
    SharedLayout,
    camel_case,
    field_types,
)
from tilec.ir.linear import LinearLayout, from_columns, tile_outs
from tilec.ir.register_layouts import Blocked, DotOperand, Linear, Mma, Slice
from tilec.ir.shared_layouts import NvmmaShared, SharedLinear, SwizzledShared, plain_rows

__all__ = ["LANES", "Blocked", "DotOperand", "Layout", "Linear", "Mma", "NvmmaShared",
           "RegisterLayout", "SharedLayout", "SharedLinear", "Slice", "SwizzledShared",
           "default_blocked", "expand", "join", "layout_from_fields", "linear_layout",
           "plain_rows", "reshape", "same_layout", "slice_of", "split", "spread_over_lanes",
           "transpose"]

LAYOUT_CLASSES: dict[str, type[Layout]] = {
    c.name: c
    for c in (Blocked, Slice, Mma, DotOperand, Linear, SwizzledShared, NvmmaShared, SharedLinear)
}  # fmt: skip


def layout_from_fields(name: str, fields: Mapping[str, object]) -> Layout:
    """The layout that prints as `name<{fields}>`.

    Values are ints, bools, strings, (nested) tuples of ints and layouts. ValueError names what is
    wrong.
    """
    cls = LAYOUT_CLASSES.get(name)
    if cls is None:
        raise ValueError(f"no layout is called {name}; there are {', '.join(LAYOUT_CLASSES)}")
    expected = {camel_case(f): kind for f, kind in field_types(cls).items()}
    missing = [f for f in expected if f not in fields]
    unknown = [f for f in fields if f not in expected]
    if missing or unknown:
        wrong = [f"{f} is missing" for f in missing] + [f"{f} is not one" for f in unknown]
        raise ValueError(f"{name} has the fields {', '.join(expected)}: {', '.join(wrong)}")
    for field, kind in expected.items():
        fits, wanted = _KINDS[kind]
        if not fits(fields[field]):
            raise ValueError(f"{name}: {field} must be {wanted}, got {fields[field]}")
    return cls(*(fields[f] for f in expected))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_ints(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_int, value))


def _is_vectors(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_ints, value))


# How each annotation of a layout's field is checked, and how a message calls it.
_KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "int": (_is_int, "an integer"), "bool": (lambda v: isinstance(v, bool), "true or false"),
    "tuple[int, ...]": (_is_ints, "a list of integers"),
    "Vectors": (_is_vectors, "a list of lists of integers"),
    "Layout": (lambda v: isinstance(v, Layout), "a layout")}


@lru_cache(maxsize=4096)
def same_layout(a: Layout, b: Layout, shape: Shape) -> bool:
    """Whether both place every element of a tile of this (power-of-two) shape alike.

    Layouts that cannot serve the shape are the same only if they are equal.
    """
    if a == b:
        return True
    try:
        return a.to_linear(shape) == b.to_linear(shape)
    except ValueError:
        return False


def linear_layout(linear: LinearLayout) -> Linear:
    """The explicit layout of a linear form (register, lane, warp) -> dims, less zero registers."""
    whole = linear.without_zero_bases("register")
    return Linear(*(whole.bases_of(holder) for holder in ("register", "lane", "warp")))


def spread_over_lanes(layout: RegisterLayout, shape: Shape) -> Layout:
    """The layout of a tile of this pow2 shape in which every warp holds the same elements as in
    `layout`, but lanes that held copies there hold what others had in registers.

    A thread's first neighbour stays, so that two elements are one access.
    """
    linear = layout.to_linear(shape).without_zero_bases("register")
    first, rest = linear.columns_of("register")[:1], list(linear.columns_of("register")[1:])
    lanes = [c or (rest.pop(0) if rest else 0) for c in linear.columns_of("lane")]
    return named(linear.with_columns("register", (*first, *rest)).with_columns("lane", lanes))


def slice_of(layout: Layout, dim: int) -> Slice:
    """The layout of a reduction along `dim`."""
    return Slice(layout, dim)


def expand(layout: Layout, dim: int, shape: Shape) -> Layout:
    """The layout after inserting an extent of 1 at `dim` into a tile of this pow2 shape."""
    if isinstance(layout, Slice) and layout.dim == dim:
        return layout.parent
    return reshape(layout, shape, shape[:dim] + (1,) + shape[dim:])


@lru_cache(maxsize=2048)
def transpose(layout: Layout, order: tuple[int, ...], shape: Shape) -> Layout:
    """The layout after permuting dimensions: dim i of the result is dim order[i] of the operand.

    shape is the operand's (powers of two). The result is named where the layout's kind can express
    it.
    """
    if order == tuple(range(len(order))):
        return layout

    def permute(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(values[o] for o in order)

    if isinstance(layout, Blocked):
        return Blocked(permute(layout.size_per_thread), permute(layout.threads_per_warp),
                       permute(layout.warps_per_cta), tuple(order.index(o) for o in layout.order))
    if isinstance(layout, Slice):
        outer = [o if o < layout.dim else o + 1 for o in order]
        outer.insert(layout.dim, layout.dim)
        whole = shape[: layout.dim] + (1,) + shape[layout.dim :]
        parent = transpose(layout.parent, tuple(outer), whole)
        if not isinstance(parent, Linear):
            return Slice(parent, layout.dim)
    moved = layout.to_linear(shape).transpose_outs([f"dim{o}" for o in order])
    return named(moved.rename_outs({f"dim{o}": f"dim{i}" for i, o in enumerate(order)}))


@lru_cache(maxsize=2048)
def reshape(layout: Layout, src_shape: Shape, dst_shape: Shape) -> Layout:
    """The layout after a row-major reshape that moves no element between registers or threads."""
    if src_shape == dst_shape:
        return layout
    return named(layout.to_linear(src_shape).reshape_outs(tile_outs(dst_shape)))


@lru_cache(maxsize=2048)
def join(layout: Layout, shape: Shape) -> Layout:
    """The layout of two tiles of this layout and pow2 shape along a new last dimension: each thread
    has the elements of one place in registers next to each other."""
    linear = layout.to_linear(shape)
    columns = {name: [c << 1 for c in linear.columns_of(name)] for name in linear.in_names}
    columns["register"].insert(0, 1)
    return named(from_columns(columns, tile_outs((*shape, 2)), linear.flip_bits << 1))


@lru_cache(maxsize=2048)
def split(layout: Layout, shape: Shape) -> Layout | None:
    """The layout of either half of a tile of this pow2 shape, whose last extent is 2; None where
    no thread holds both elements of a pair."""
    linear = layout.to_linear(shape)
    if 1 not in linear.columns_of("register"):
        return None
    columns = {name: [c >> 1 for c in linear.columns_of(name) if c != 1]
               for name in linear.in_names}
    return named(from_columns(columns, tile_outs(shape[:-1]), linear.flip_bits >> 1))


@lru_cache(maxsize=2048)
def named(linear: LinearLayout) -> Layout:
    """A blocked layout with exactly this linear form if there is one, else explicit bases."""
    shape = tuple(n for _, n in linear.out_sizes)
    if len(shape) <= 3:
        for order in permutations(reversed(range(len(shape)))):
            guess = _guess_blocked(linear, shape, order)
            if guess is not None and guess.to_linear(shape) == linear:
                return guess
    return linear_layout(linear)


def _guess_blocked(linear: LinearLayout, shape: Shape, order: Shape) -> Blocked | None:
    """The blocked layout of the first runs of register, lane, warp bits along each dimension."""
    taken: list[list[int]] = []
    reached = [1] * len(shape)
    for holder in ("register", "lane", "warp"):
        extents = [1] * len(shape)
        bases = list(linear.bases_of(holder))
        copies = sum(1 for b in bases if not any(b))
        for dim in order:
            while bases and bases[0][dim] == reached[dim]:
                reached[dim] *= 2
                extents[dim] *= 2
                bases.pop(0)
        if copies and holder != "register":
            # Threads that hold copies lie beyond the extent of a dimension that is used up.
            full = [d for d in order if reached[d] >= shape[d]]
            if not full:
                return None
            extents[full[-1]] <<= copies
            reached[full[-1]] <<= copies
        if holder == "lane" and prod(extents) != LANES:
            return None
        taken.append(extents)
    spt, tpw, wpc = (tuple(t) for t in taken)
    return Blocked(spt, tpw, wpc, order) if prod(wpc) == linear.in_size("warp") else None


@lru_cache(maxsize=2048)
def default_blocked(shape: Shape, num_warps: int, size_per_thread: tuple[int, ...] | None = None,
                    order: tuple[int, ...] | None = None) -> Blocked:
    """A blocked layout covering a tile of any extents: threads along the fastest dim first.

    order defaults to the last dimension fastest, size_per_thread to ones. Threads and warps beyond
    the tile's extent go to the slowest dimension, where they hold copies.
    """
    rank = len(shape)
    order = order or tuple(reversed(range(rank)))
    spt = size_per_thread or (1,) * rank
    left = [max(1, split_extent(n)[1] // s) for n, s in zip(shape, spt, strict=True)]
    extents: list[list[int]] = []
    for budget in (LANES, num_warps):
        taken = [1] * rank
        for dim in order:
            taken[dim] = min(budget, left[dim])
            left[dim] //= taken[dim]
            budget //= taken[dim]
        taken[order[-1]] *= budget
        extents.append(taken)
    return Blocked(spt, tuple(extents[0]), tuple(extents[1]), order)
