"""Tensor maps that a launch makes by itself, of the arguments that the author's parameters got."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from tilec import sim
from tilec.errors import LaunchError, TilecError
from tilec.ir.descriptors import tma_boxes
from tilec.ir.layouts import NvmmaShared, plain_rows
from tilec.ir.tensor_maps import EVERYTHING, ROOM, STRIDE_BYTES, MapRecipe
from tilec.ir.types import SCALARS, TensorMap
from tilec.runtime.cache import conforms, parse_json
from tilec.runtime.descriptors import TensorDescriptor
from tilec.runtime.ranges import of_texts
from tilec.runtime.tensor_map import encode, in_simulator

_NOTE = " tensor maps, made of the arguments: "
_EXPRESSION = re.compile(r"[\d$ ()+*%-]{1,65536}")
_NODES = (ast.Expression, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Mod, ast.UnaryOp, ast.USub,
          ast.Constant, ast.Subscript, ast.Name, ast.Load)
Values = Sequence[Any] | Mapping[int, Any]  # of arguments, by their numbers
Numbers = Callable[[Values], tuple[int, ...]]
Grid = tuple[int, int, int]
Tensor = tuple[tuple[int, ...], tuple[int, ...]]  # extents, strides in elements
_FIRST: Tensor = (), ()  # the first element alone


def _numbers(texts: Sequence[str]) -> Numbers:
    """The values of expressions over the arguments "$0", "$1", ...: what it gives raises
    LaunchError for a remainder modulo 0 and for an argument that is no number."""
    codes = list(map(_python, texts))
    made: Numbers = eval(f"lambda v: ({''.join(f'{code}, ' for code in codes)})")

    def numbers(values: Values) -> tuple[int, ...]:
        try:
            return made(values)
        except (ArithmeticError, LookupError, TypeError) as e:
            raise LaunchError(f"one of `{', '.join(texts)}`, of a tensor map, has no value: {e}"
                              ) from None

    return numbers


def _python(text: str) -> str:
    """An expression in Python, over a list `v`; LaunchError for any but sums, products and
    remainders, whose size is bounded."""
    code = re.sub(r"\$(\d+)", r"v[\1]", text).strip()
    try:
        if _EXPRESSION.fullmatch(text) and \
                all(isinstance(node, _NODES) for node in ast.walk(ast.parse(code, mode="eval"))):
            return code
    except (SyntaxError, RecursionError, MemoryError):  # the latter two: nested too deep
        pass
    raise LaunchError(f"`{text[:200]}` is no expression over parameters", None,
                      "a tensor map's extents and strides are sums and products of them")


def _address(value: Any) -> int:
    """Where the memory of an argument begins: an array in host memory, or an address."""
    return value if isinstance(value, int) else int(value.ctypes.data)


def _plain(value: Any) -> Any:
    """A number of numpy's, which would wrap in its type, as Python's; arrays as they are."""
    return value.item() if hasattr(value, "item") and not hasattr(value, "ctypes") else value


class NoMap(LaunchError):
    """A tensor map of an author's pointers cannot be made: the kernel that leaves pointers alone
    serves the launch."""


class MapMaker:
    """Makes one tensor map at each launch; the driver encodes equal ones once."""

    def __init__(self, recipe: MapRecipe) -> None:
        self.type, self.name, self.base = recipe.type, recipe.name, recipe.base
        self.stored = recipe.stored
        self.extents, self.strides = _numbers(recipe.extents), _numbers(recipe.strides)
        self.boxes = _Boxes(recipe) if recipe.places else None
        # Parameters whose memory must not overlap this one's: number, name, and their maps.
        self.others: list[tuple[int, str, list[MapMaker]]] = [(*o, []) for o in recipe.apart]
        texts = " ".join((*recipe.extents, *recipe.strides, *recipe.places))
        self.reads = {self.base, *map(int, re.findall(r"\$(\d+)", texts))}
        self._known = lru_cache(maxsize=256)(self._encoded)

    def on_device(self, values: Sequence[Any], grid: Grid) -> bytes:
        """The 128 bytes, where the value of the pointer is an address. LaunchError for a tensor
        that TMA cannot serve, NoMap where pointers do."""
        return self._known(tuple([values[i] for i in self.all_reads]), grid)

    @cached_property
    def all_reads(self) -> list[int]:
        """Numbers of the parameters that the map, or whether it may be made, depends on."""
        found = set(self.reads)
        for index, _, others in self.others:
            found |= {index}.union(*(other.reads for other in others))
        return sorted(found)

    def _encoded(self, read: tuple[Any, ...], grid: Grid) -> bytes:
        values = dict(zip(self.all_reads, read, strict=True))
        extents, strides = self._checked(values, grid)
        try:
            return encode(values[self.base], extents, strides, self.type, self.name)
        except TilecError as e:
            raise self._refusal(e) from None

    def on_host(self, values: Sequence[Any], grid: Grid) -> Any:
        """The tensor as a view of the argument, an array in host memory; what TMA could not serve
        is refused as on a device."""
        return self.in_simulator(values, grid).array

    def in_simulator(self, values: Sequence[Any], grid: Grid) -> sim.TensorMap:
        """The simulator's record of it."""
        values = list(map(_plain, values))
        described = TensorDescriptor(values[self.base], *self._checked(values, grid))
        try:
            return in_simulator(described, self.type, self.name)
        except LaunchError as e:
            raise self._refusal(e) from None

    def _refusal(self, e: TilecError) -> TilecError:
        """The error for a tensor that has no map: where these are an author's boxes, one upon which
        the kernel that leaves pointers alone is taken."""
        return e if self.boxes is None else NoMap(e.message, e.loc, e.advice)

    def _checked(self, values: Values, grid: Grid) -> Tensor:
        """Extents and strides. LaunchError where TMA must not be used for the arguments."""
        row = self.extents(values)[-1] * self.type.element.bytes if self.stored else 0
        if row % STRIDE_BYTES:
            raise LaunchError(
                f"`{self.name}` has rows of {row} bytes, and the kernel stores blocks of it by TMA",
                None, f"TMA stores whole chunks of {STRIDE_BYTES} bytes: make the rows multiples")
        tensor = self.tensor(values, grid)
        for index, name, others in self.others:
            if self._meets(tensor, values, grid, index, others):
                raise self._refusal(LaunchError(
                    f"`{self.name}` and `{name}` overlap", None,
                    "TMA moves blocks of one of them, in no order with what the kernel does to the "
                    "other: pass two buffers, or make them one argument, which TMA leaves alone"))
        return tensor

    def tensor(self, values: Values, grid: Grid) -> Tensor:
        """Extents and strides, without a check."""
        if self.boxes is not None:
            return self.boxes.tensor(values, grid)
        return self.extents(values), self.strides(values)

    def _meets(self, tensor: Tensor, values: Values, grid: Grid, index: int,
               others: Sequence[MapMaker]) -> bool:
        """Whether the tensor has memory in common with what the kernel accesses through another
        argument. Of one that has no map only its first address is known."""
        start, there = _address(values[self.base]), _address(values[index])
        known = [(other.tensor(values, grid), other.type.element.bytes) for other in others]
        return any(_overlap(start, tensor, self.type.element.bytes, there, *found)
                   for found in known or [(_FIRST, 1)])


def _overlap(start: int, tensor: Tensor, size: int, there: int, other: Tensor, other_size: int
             ) -> bool:
    """Whether two tensors may share a byte: neither lies behind the other, nor are they columns of
    one array side by side, as the parts of a packed projection are, whose pitch is a stride."""
    if there + _span(other, other_size) <= start or start + _span(tensor, size) <= there:
        return False
    pitches = {*(s * size for s in tensor[1]), *(s * other_size for s in other[1])}
    return not any(_span(tensor, size, pitch) <= (there - start) % pitch <=
                   pitch - _span(other, other_size, pitch) for pitch in pitches if pitch > 0)


def _span(tensor: Tensor, size: int, pitch: int = 0) -> int:
    """Bytes from the first element to the end of the last one; of one row of an array with this
    pitch, if there is one."""
    return size + sum((n - 1) * stride * size for n, stride in zip(*tensor, strict=True)
                      if not pitch or stride * size % pitch)


def makers(recipes: Sequence[MapRecipe]) -> list[MapMaker]:
    """Those of a kernel's tensor maps, in their order."""
    made = [MapMaker(recipe) for recipe in recipes]
    for maker in made:
        for index, _, others in maker.others:
            others += [m for m in made if m.base == index]
    return made


class _Boxes:
    """What a launch has to know of boxes that an author's pointers make up."""

    def __init__(self, recipe: MapRecipe) -> None:
        self.name, self.reach, self.narrow = recipe.name, recipe.reach, recipe.narrow
        self.numbers = _numbers((*recipe.extents, *recipe.strides))
        self.places = of_texts(recipe.places)
        parts = " ".join(recipe.places[-len(recipe.reach):])
        self.parts = [int(n) for n in re.findall(r"t(\d+)", parts)]  # of places, by their line
        self.arguments = [int(n) for n in re.findall(r"\$(\d+)", parts)]

    def tensor(self, values: Values, grid: Grid) -> Tensor:
        """Extents, no larger than blocks reach, and strides. NoMap where blocks might begin outside
        of the tensor, or an offset not fit the author's 32 bits."""
        found = self._tensor(values, grid)
        if isinstance(found, str):
            raise NoMap(f"blocks of `{self.name}` {found}", None,
                        "compile the kernel with find_boxes=False, which leaves pointers alone")
        return found

    def _tensor(self, values: Values, grid: Grid) -> Tensor | str:
        rank, numbers = len(self.reach), self.numbers(values)
        extents, strides = numbers[:rank], numbers[rank:]
        try:
            ranges = self.places(values, grid)
        except OverflowError:
            return "might begin at a place that 32 bits do not hold"
        except ZeroDivisionError:
            return "might begin at a place that comes from a division by zero"
        places = ranges[-rank:]
        if any(ranges[n].low < 0 for n in self.parts) or any(values[n] < 0 for n in self.arguments):
            return "might begin at a place some of whose parts are negative"  # see forms.within
        if any(place.low < 0 for place in places):
            return "might begin before it"
        if any(place.high + ROOM > EVERYTHING for place in places) or \
                any(n > EVERYTHING for n in extents):
            return "might begin at a place that 32 bits do not hold"
        extents = tuple(min(n, place.high + block)
                        for n, place, block in zip(extents, places, self.reach, strict=True))
        last = sum((n - 1) * stride for n, stride in zip(extents, strides, strict=True))
        if strides[-2] < extents[-1]:
            return "have rows that overlap"
        if self.narrow and last + ROOM > EVERYTHING:
            return "have offsets that 32 bits do not hold"
        return extents, strides


def to_json(recipe: MapRecipe) -> list[Any]:
    """The recipe as what JSON can hold."""
    t = recipe.type
    return [t.shape, t.element.name, tma_boxes(t).swizzle, t.layout.rank, *recipe[1:]]


_RECIPE = ([int], str, int, int, str, int, [str], [str], [(int, str)], bool, [str], [int], bool)


def from_json(data: Any) -> MapRecipe:
    """The recipe that `to_json` wrote down; ValueError for anything else."""
    if not conforms(data, _RECIPE) or data[1] not in SCALARS:
        raise ValueError("not the description of a tensor map")
    shape, name, swizzle, rank, *rest = data
    element = SCALARS[name]
    layout = NvmmaShared(swizzle, False, element.bits) if swizzle else plain_rows(rank)
    t = TensorMap(tuple(shape), element, layout)
    label, base, extents, strides, apart, stored, places, reach, narrow = rest
    return MapRecipe(t, label, base, tuple(extents), tuple(strides), tuple(map(tuple, apart)),
                     stored, tuple(places), tuple(reach), narrow)


def noted(text: str, recipes: Sequence[MapRecipe], comment: str) -> str:
    """PTX or LLVM IR with a line about the tensor maps that a launch has to make."""
    if not recipes:
        return text
    return f"{text.rstrip()}\n{comment}{_NOTE}{json.dumps(list(map(to_json, recipes)))}\n"


def of_text(text: str) -> list[MapRecipe]:
    """What `noted` wrote. LaunchError where it was edited into something else."""
    _, found, line = text.rpartition(_NOTE)
    if not found:
        return []
    try:
        return list(map(from_json, parse_json(line.partition("\n")[0].encode())))
    except (ValueError, TypeError, TilecError) as e:
        raise LaunchError(f"the line about tensor maps cannot be read: {e}") from None
