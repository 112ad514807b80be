"""Sorting, written over reductions: sort, topk and bitonic_merge."""

from __future__ import annotations

from typing import Any

from tilec.language import combine
from tilec.language import dtypes as dt
from tilec.language.casting import reinterpret
from tilec.language.context import error
from tilec.language.order import dimension, gather
from tilec.language.reduction import indices, number_tile, reduce, xor_sum
from tilec.language.selection import maximum, minimum, where
from tilec.language.semantic import and_, eq, lt, ne, rshift, xor
from tilec.language.shape import permute, require_tile, reshape
from tilec.language.values import builtin, const_int, const_value, method, tensor

# Keys are integers whose order is that of the elements, the last dimension 2**k of them. A bitonic
# network compares each with the one whose index differs in a bit, which is the exclusive or of both
# with itself: that reduction is register renaming, shuffles or an exchange through shared memory.

def _key(x: tensor) -> tensor:
    """Integers in the order of the elements: of floats their bits, the magnitude of negative ones
    flipped, with all NaN the greatest."""
    if not x.dtype.is_floating():
        return x
    return _flipped(reinterpret(where(ne(x, x), float("nan"), x), _bits(x.dtype)))


def _element(key: tensor, t: dt.dtype) -> tensor:
    return reinterpret(_flipped(key), t) if t.is_floating() else key


def _bits(t: dt.dtype) -> dt.dtype:
    return {16: dt.int16, 32: dt.int32, 64: dt.int64}[t.primitive_bitwidth]


def _flipped(bits: tensor) -> tensor:
    width = bits.dtype.primitive_bitwidth
    return xor(bits, and_(rshift(bits, width - 1), (1 << width - 1) - 1))


def _least(t: dt.dtype, greatest: bool) -> int | bool:
    """The least key of a type, or the greatest."""
    if t.is_bool():
        return greatest
    bits = t.primitive_bitwidth - t.is_int_signed()
    return (1 << bits) - 1 if greatest else -(1 << bits) if t.is_int_signed() else 0


def _other(keys: tensor, bit: int) -> tensor:
    """For each key the one whose index differs in this bit."""
    *outer, n = keys.shape
    pairs = reshape(keys, (*outer, n >> bit + 1, 2, 1 << bit))
    return reshape(xor(pairs, xor_sum(pairs, -2, keep_dims=True)), keys.shape)


def _merged(keys: tensor, top: int, descending: bool) -> tensor:
    """Each 2**top neighbours, a bitonic sequence, in order; every second such group in reverse."""
    at = indices(keys.shape, len(keys.shape) - 1)
    for bit in range(top)[::-1]:
        other = _other(keys, bit)
        turned = xor(rshift(at, bit), rshift(at, top))
        wants_least = eq(and_(turned, 1), int(descending))
        keys = where(wants_least, minimum(keys, other), maximum(keys, other))
    return keys


def _padded(keys: tensor, fill: int | bool) -> tensor:
    """Keys up to the next power of two, those that are added as given."""
    *outer, n = keys.shape
    shape = (*outer, 1 << (n - 1).bit_length())
    if shape == keys.shape:
        return keys
    at = indices(shape, len(outer))
    return where(lt(at, n), gather(keys, minimum(at, n - 1), -1), fill)


def _first(keys: tensor, count: int) -> tensor:
    *outer, n = keys.shape
    return keys if n == count else gather(keys, indices((*outer, count), len(outer)), -1)


def _sorted(x: Any, count: Any, dim: Any, descending: bool, what: str) -> tensor:
    """The first elements in order along a dimension, so many of them (None: all)."""
    tile = number_tile(x, what)
    axis = dimension(dim, tile, what)
    order = [*range(tile.rank)]
    order[axis], order[-1] = order[-1], order[axis]
    keys = _key(permute(tile, order))
    keys = _padded(keys, _least(keys.dtype, not descending))
    n = keys.shape[-1]
    count = tile.shape[axis] if count is None else count
    group = (count - 1).bit_length()
    for top in range(1, group + 1):
        keys = _merged(keys, top, descending)
    while n >> group > 1:
        # Of two groups in opposite order the greater (or lesser) ones of each two make up a bitonic
        # sequence.
        *outer, n = keys.shape
        pairs = reshape(keys, (*outer, n >> group + 1, 2, 1 << group))
        keys = reshape(reduce(pairs, -2, combine.maximum if descending else combine.minimum),
                       (*outer, n // 2))
        keys, n = _merged(keys, group, descending), n // 2
    return permute(_element(_first(keys, count), tile.dtype), order)


@method("sort")
@builtin
def sort(x: Any, dim: Any = None, descending: Any = False) -> tensor:
    """The elements along `dim`, the last dimension by default, in ascending order, or in
    descending. NaN counts as greater than every number, -0.0 as less than 0.0."""
    return _sorted(x, None, dim, bool(const_value(descending, "descending")), "tl.sort")


@builtin
def topk(x: Any, k: Any, dim: Any = None) -> tensor:
    """The `k` greatest elements along `dim`, the last dimension by default, in descending order;
    in the order of `sort`."""
    count, tile = const_int(k, "k"), require_tile(x, "tl.topk")
    n = tile.shape[dimension(dim, tile, "tl.topk")]
    if not 0 < count <= n:
        raise error(f"tl.topk: k is {count}, expected 1 to {n}, the elements along the dimension",
                    "tl.sort gives all of them")
    return _sorted(tile, count, dim, True, "tl.topk")


@builtin
def bitonic_merge(x: Any, dim: Any = None, descending: Any = False) -> tensor:
    """A bitonic sequence (ascending, then descending, or the other way round) along `dim`, the last
    dimension by default, in order. Its extent is a power of two."""
    tile = number_tile(x, "tl.bitonic_merge")
    axis = dimension(dim, tile, "tl.bitonic_merge")
    n = tile.shape[axis]
    if n & n - 1:
        raise error(f"tl.bitonic_merge: {n} elements lie along axis {axis} of {tile}, expected a "
                    "power of two", "tl.sort takes any number")
    order = [*range(tile.rank)]
    order[axis], order[-1] = order[-1], order[axis]
    down = bool(const_value(descending, "descending"))
    keys = _merged(_key(permute(tile, order)), n.bit_length() - 1, down)
    return permute(_element(keys, tile.dtype), order)
