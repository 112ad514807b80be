"""Linear layouts: maps over F2 from named hardware indices to named coordinates.

A layout is a matrix of bits: each bit of an input index owns one column (a "basis"), and the image
of an index is the XOR of the columns of its set bits, XORed with a constant (`flip`). Every input
and output extent is a power of two. Layouts are immutable and hashable, so that results can be
cached by value.

Inside, a column is one int in which the output coordinates are packed in row-major order: the last
output dimension holds the lowest bits. Reshaping the outputs row-major therefore leaves the columns
unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tilec.ir.bitmatrix import BitMatrix, Sizes, packing
from tilec.ir.f2 import Span, log2_exact


@dataclass(frozen=True, eq=False)
class LinearLayout(BitMatrix):
    """A map over F2; built with `from_bases`, `identity1d`, `zeros1d` and the operations below.

    in_sizes and out_sizes are (name, extent) pairs; columns[i][b] is the packed image of bit b of
    input i.
    """

    # ---- edits of the inputs

    def transpose_ins(self, order: Sequence[str]) -> LinearLayout:
        """The same map with its inputs listed in `order`."""
        _check_same_names(self.in_names, order, "input")
        picked = [self._in_index[n] for n in order]
        ins = tuple(self.in_sizes[i] for i in picked)
        return LinearLayout(ins, self.out_sizes, tuple(self.columns[i] for i in picked),
                            self.flip_bits)

    def with_columns(self, name: str, columns: Sequence[int]) -> LinearLayout:
        """The layout with the packed columns of one input replaced."""
        cols = dict(zip(self.in_names, self.columns, strict=True))
        cols[name] = tuple(columns)
        return from_columns(cols, self.out_sizes, self.flip_bits)

    def without_zero_bases(self, name: str) -> LinearLayout:
        """The layout without the zero columns of one input (copies of the same element)."""
        cols = self.columns_of(name)
        return self.with_columns(name, [c for c in cols if c]) if 0 in cols else self

    # ---- edits of the outputs
    def rename_outs(self, names: Mapping[str, str]) -> LinearLayout:
        outs = tuple((names.get(n, n), s) for n, s in self.out_sizes)
        return LinearLayout(self.in_sizes, outs, self.columns, self.flip_bits)

    def transpose_outs(self, order: Sequence[str]) -> LinearLayout:
        """The same map with its outputs listed in `order`."""
        if tuple(order) == self.out_names:
            return self
        _check_same_names(self.out_names, order, "output")
        return self.sublayout(self.in_names, order)

    def reshape_outs(self, sizes: Sequence[tuple[str, int]]) -> LinearLayout:
        """Regroup the output bits row-major (last output fastest), keeping their number."""
        outs = tuple(sizes)
        if sum(b for _, b in packing(outs)) != self.out_bits:
            raise ValueError(f"cannot regroup outputs {self.out_sizes} as {outs}")
        return LinearLayout(self.in_sizes, outs, self.columns, self.flip_bits)

    def flatten_outs(self, name: str = "flat") -> LinearLayout:
        """One output, the row-major index."""
        return self.reshape_outs(((name, 1 << self.out_bits),))

    def flipped(self, coords: Sequence[int]) -> LinearLayout:
        """The layout XOR a constant coordinate."""
        flip = self.flip_bits ^ self.pack(coords)
        return LinearLayout(self.in_sizes, self.out_sizes, self.columns, flip)

    def sublayout(self, ins: Sequence[str], outs: Sequence[str]) -> LinearLayout:
        """The rows of `outs` and columns of `ins`, in that order."""
        places = dict(zip(self.out_names, packing(self.out_sizes), strict=True))
        sizes = dict(self.out_sizes)
        new_sizes = tuple((n, sizes[n]) for n in outs)
        moves = [(*places[n], new_shift) for n, (new_shift, _) in
                 zip(outs, packing(new_sizes), strict=True)]
        picked = [self._in_index[n] for n in ins]
        cols = tuple(tuple(_repack(c, moves) for c in self.columns[i]) for i in picked)
        return LinearLayout(tuple(self.in_sizes[i] for i in picked), new_sizes, cols,
                            _repack(self.flip_bits, moves))

    # ---- algebra
    def __mul__(self, other: LinearLayout) -> LinearLayout:
        """Direct sum: on a shared dimension `other` takes the bits above this layout's."""
        out_bits = dict(zip(self.out_names, (b for _, b in packing(self.out_sizes)), strict=True))
        sizes = dict(self.out_sizes)
        for n, s in other.out_sizes:
            sizes[n] = sizes.get(n, 1) * s
        outs = tuple(sizes.items())
        target = {n: s for (n, _), (s, _) in zip(outs, packing(outs), strict=True)}
        mine = [(s, b, target[n]) for n, (s, b) in _named_packing(self)]
        theirs = [(s, b, target[n] + out_bits.get(n, 0)) for n, (s, b) in _named_packing(other)]
        cols = {n: tuple(_repack(c, mine) for c in cs) for n,
                cs in zip(self.in_names, self.columns, strict=True)}
        for n, cs in zip(other.in_names, other.columns, strict=True):
            cols[n] = cols.get(n, ()) + tuple(_repack(c, theirs) for c in cs)
        flip = _repack(self.flip_bits, mine) ^ _repack(other.flip_bits, theirs)
        return from_columns(cols, outs, flip)

    def compose(self, outer: LinearLayout) -> LinearLayout:
        """x -> outer(self(x)); this layout's outputs must be outer's inputs and fit them."""
        _check_same_names(self.out_names, outer.in_names, "intermediate")
        places = dict(_named_packing(self))
        table: list[tuple[int, int]] = []
        for name, cols in zip(outer.in_names, outer.columns, strict=True):
            shift, bits = places[name]
            if bits > len(cols):
                raise ValueError(f"compose: {name} has {1 << bits} values, outer takes fewer")
            table += [(1 << (shift + i), cols[i]) for i in range(bits)]

        def image(c: int) -> int:
            packed = 0
            for bit, col in table:
                if c & bit:
                    packed ^= col
            return packed

        cols2 = tuple(tuple(image(c) for c in cs) for cs in self.columns)
        flip = image(self.flip_bits) ^ outer.flip_bits
        return LinearLayout(self.in_sizes, outer.out_sizes, cols2, flip)

    def invert(self) -> LinearLayout:
        """The inverse of a bijective layout; ValueError when it is not bijective."""
        if not self.is_bijective:
            raise ValueError("only a bijective layout can be inverted")
        return identity_of(self.out_sizes).invert_and_compose(self)

    def invert_and_compose(self, other: LinearLayout) -> LinearLayout:
        """C with other(C(x)) == self(x), from this layout's inputs to other's inputs.

        `other` must be surjective onto this layout's image. Where several C exist, an input
        dimension whose columns are equal in both maps to itself (so broadcast warps stay in place),
        and free bits are 0.
        """
        if self.out_names != other.out_names:
            other = other.transpose_outs(self.out_names)
        if self.out_sizes != other.out_sizes:
            raise ValueError(f"outputs differ: {self.out_sizes} and {other.out_sizes}")
        outs = other.in_sizes
        place = {n: p[0] for (n, _), p in zip(outs, packing(outs), strict=True)}
        flip = self.flip_bits ^ other.flip_bits
        same = {n for n, cs in zip(self.in_names, self.columns, strict=True) if other.has_in(n)
                and other.columns_of(n) == cs}
        span, units = Span(), list[int]()
        for name, cs in zip(other.in_names, other.columns, strict=True):
            for bit, c in enumerate(cs):
                span.add(c)
                units.append(1 << (place[name] + bit))
        cols: list[tuple[int, ...]] = []
        for name, cs in zip(self.in_names, self.columns, strict=True):
            if name in same:
                cols.append(tuple(1 << (place[name] + i) for i in range(len(cs))))
            else:
                cols.append(tuple(_solve(span, units, c) for c in cs))
        return LinearLayout(self.in_sizes, outs, tuple(cols), _solve(span, units, flip))

    def divide_left(self, divisor: LinearLayout) -> LinearLayout | None:
        """C with self == divisor * C, or None."""
        return self._divide(divisor, low=True)

    def divide_right(self, divisor: LinearLayout) -> LinearLayout | None:
        """C with self == C * divisor, or None."""
        return self._divide(divisor, low=False)

    def _divide(self, divisor: LinearLayout, low: bool) -> LinearLayout | None:
        mine, theirs = dict(_named_packing(self)), dict(_named_packing(divisor))
        outs: list[tuple[str, int]] = []
        for name, (_, bits) in mine.items():
            keep = bits - theirs.get(name, (0, 0))[1]
            if keep < 0:
                return None
            outs.append((name, 1 << keep))
        ins: dict[str, tuple[int, ...]] = {}
        for name, cs in zip(self.in_names, self.columns, strict=True):
            cut = len(divisor.columns_of(name))
            if cut > len(cs):
                return None
            ins[name] = cs[cut:] if low else cs[: len(cs) - cut]
        if not set(divisor.in_names) <= set(ins) or not set(theirs) <= set(mine):
            return None
        moves = []
        for (name, _), (new_shift, keep) in zip(outs, packing(tuple(outs)), strict=True):
            shift, bits = mine[name]
            moves.append((shift + (bits - keep if low else 0), keep, new_shift))
        rest = {n: tuple(_repack(c, moves) for c in cs) for n, cs in ins.items()}
        quotient = from_columns(rest, tuple(outs), _repack(self.flip_bits, moves))
        product = divisor * quotient if low else quotient * divisor
        same = product.transpose_ins(self.in_names).transpose_outs(self.out_names) == self
        return quotient if same else None


def _solve(span: Span, units: Sequence[int], target: int) -> int:
    mask = span.solve(target)
    if mask is None:
        raise ValueError("no solution: the other layout does not reach every element")
    packed = 0
    while mask:
        low = mask & -mask
        packed ^= units[low.bit_length() - 1]
        mask ^= low
    return packed


def _named_packing(layout: LinearLayout) -> list[tuple[str, tuple[int, int]]]:
    return list(zip(layout.out_names, packing(layout.out_sizes), strict=True))


def _repack(column: int, moves: Sequence[tuple[int, int, int]]) -> int:
    packed = 0
    for shift, bits, target in moves:
        packed |= ((column >> shift) & ((1 << bits) - 1)) << target
    return packed


def _check_same_names(have: Sequence[str], given: Sequence[str], what: str) -> None:
    if sorted(have) != sorted(given):
        raise ValueError(f"{what} names are {tuple(have)}, got {tuple(given)}")


def from_bases(bases: Mapping[str, Sequence[Sequence[int]]], outs: Sequence[tuple[str, int]],
               flip: Sequence[int] | None = None) -> LinearLayout:
    """A layout from coordinate tuples per input bit; `outs` gives output names and extents.

    ValueError when an extent is not a power of two or a coordinate lies outside its extent.
    """
    out_sizes = tuple(outs)
    packing(out_sizes)  # refuses extents that are not powers of two
    empty = LinearLayout((), out_sizes, ())
    for vectors in [*bases.values(), [flip] if flip else []]:
        for v in vectors:
            if len(v) != len(out_sizes):
                raise ValueError(f"basis {tuple(v)} needs {len(out_sizes)} coordinates")
            for c, (name, size) in zip(v, out_sizes, strict=True):
                if not 0 <= c < size:
                    raise ValueError(f"basis {tuple(v)} lies outside {name} = {size}")
    cols = {n: tuple(empty.pack(v) for v in vs) for n, vs in bases.items()}
    return from_columns(cols, out_sizes, empty.pack(flip) if flip else 0)


def from_columns(columns: Mapping[str, Sequence[int]], outs: Sequence[tuple[str, int]],
                 flip: int = 0) -> LinearLayout:
    """A layout from packed columns (row-major images, last output in the low bits)."""
    cols = {n: tuple(cs) for n, cs in columns.items()}
    ins = tuple((n, 1 << len(cs)) for n, cs in cols.items())
    return LinearLayout(ins, tuple(outs), tuple(cols.values()), flip)


@lru_cache(maxsize=1024)
def identity1d(size: int, in_name: str, out_name: str) -> LinearLayout:
    """in_name -> out_name, index to itself."""
    cols = tuple(1 << i for i in range(log2_exact(size)))
    return LinearLayout(((in_name, size),), ((out_name, size),), (cols,))


@lru_cache(maxsize=1024)
def zeros1d(size: int, in_name: str, out_name: str, out_size: int = 1) -> LinearLayout:
    """in_name -> out_name, every index to 0 (a broadcast)."""
    cols = (0,) * log2_exact(size)
    return LinearLayout(((in_name, size),), ((out_name, out_size),), (cols,))


@lru_cache(maxsize=1024)
def identity_of(sizes: Sizes) -> LinearLayout:
    """Every dimension to the dimension of the same name."""
    cols = tuple(tuple(1 << (s + i) for i in range(b)) for s, b in packing(sizes))
    return LinearLayout(sizes, sizes, cols)


@lru_cache(maxsize=1024)
def tile_outs(shape: tuple[int, ...]) -> Sizes:
    """(("dim0", n0), ("dim1", n1), ...) for a tile's shape; extents must be powers of two."""
    for n in shape:
        log2_exact(n)
    return tuple((f"dim{i}", n) for i, n in enumerate(shape))
