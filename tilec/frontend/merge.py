"""Values as trees of IR values: what `if`, `for` and `while` pass through their regions.

A tree has a Leaf for every tensor inside a value, and keeps what is known at compile time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilec.errors import Location
from tilec.ir import ops
from tilec.ir.core import Builder, Value
from tilec.ir.types import Pointer, Scalar, Tensor, Type, element_of, i64, shape_of
from tilec.language.dtypes import dtype, of_ir
from tilec.language.literals import literal_dtype
from tilec.language.promotion import number_dtype
from tilec.language.values import (
    constant,
    constexpr,
    describe,
    is_number,
    like,
    tensor,
    to_tensor,
)


@dataclass
class Leaf:
    """A tensor in a tree: the index among its IR values."""

    index: int


@dataclass
class Again:
    """A number that both arms assigned: made anew after them."""

    literal: int | float | bool


class Mismatch(Exception):
    """Two values of one name cannot be one value; `args[0]` says what they are."""


@dataclass
class Undefined:
    """Stands in scope for a name that has no usable value; reading it raises an error.

    loc: where to point instead of at the reading.
    """

    message: str
    advice: str
    loc: Location | None = None


def rebuild(tree: Any, handles: Sequence[Value], name: str) -> Any:
    """The value of a tree, from the IR values of its leaves, which are named after it."""
    if isinstance(tree, Leaf):
        handle = handles[tree.index]
        if not handle.name:
            handle.name = name
        return tensor(handle)
    if isinstance(tree, Again):
        return to_tensor(tree.literal)
    if isinstance(tree, tuple):
        return like(tree, [rebuild(t, handles, name) for t in tree])
    return tree


def split(value: Any, leaves: list[Value]) -> Any:
    """The tree of a value, its tensors appended to `leaves`; numbers become tensors."""
    if is_number(value):
        value = to_tensor(value)
    if isinstance(value, tensor):
        leaves.append(value.handle)
        return Leaf(len(leaves) - 1)
    if isinstance(value, tuple):
        return like(value, [split(v, leaves) for v in value])
    return value


def fit(tree: Any, types: Sequence[Type], value: Any, out: list[Value]) -> None:
    """Append the IR values of `value` for the leaves of `tree`, whose types are given; Mismatch
    if it does not have that form or those types."""
    if isinstance(tree, Leaf):
        want = types[tree.index]
        if is_number(value):
            value = adopt(value, want)
        if not isinstance(value, tensor) or value.handle.type != want:
            raise Mismatch(describe(value))
        out.append(value.handle)
    elif isinstance(tree, tuple):
        if type(value) is not type(tree) or len(value) != len(tree):
            raise Mismatch(describe(value))
        for t, v in zip(tree, value, strict=True):
            fit(t, types, v, out)
    elif not same(tree, value):
        raise Mismatch(describe(value))


def adopt(number: Any, want: Type) -> tensor:
    """A plain number as a value of type `want` if its kind fits, else as a scalar of its own."""
    made = literal_dtype(number)
    if not isinstance(element_of(want), Scalar) or made.kind() > of_ir(element_of(want)).kind():
        return to_tensor(number)
    return constant(number, number_dtype(number, of_ir(element_of(want))), shape_of(want))


def same(a: Any, b: Any) -> bool:
    """Whether two compile-time values are the same."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return isinstance(a, (bool, int, float, str, dtype)) and a == b


class Join:
    """Joins the values that two arms of an `if` leave in one name.

    at_end: given 0 or 1, returns a context in which ops go to the end of that arm. handles: per
    arm, the values it has to yield.
    """

    def __init__(self, at_end: Callable[[int], Any], builder: Builder) -> None:
        self.at_end = at_end
        self.builder = builder
        self.handles: tuple[list[Value], list[Value]] = ([], [])

    def both(self, a: Any, b: Any) -> Any:
        """The tree of a value that is `a` after one arm and `b` after the other; Mismatch."""
        if same(a, b):
            return a
        if isinstance(a, tuple) and type(a) is type(b) and len(a) == len(b):
            return like(a, [self.both(x, y) for x, y in zip(a, b, strict=True)])
        if not (_is_run_time(a) and _is_run_time(b)):
            raise Mismatch(describe(a), describe(b))
        if isinstance(a, tensor) and isinstance(b, tensor) and a.literal is not None and \
                same(a.literal, b.literal) and a.handle.type == b.handle.type:
            return Again(a.literal)
        x, y = self._as_tensors(a, b)
        if x.handle.type != y.handle.type:
            raise Mismatch(describe(x), describe(y))
        return self._leaf(x.handle, y.handle)

    def _as_tensors(self, a: Any, b: Any) -> tuple[tensor, tensor]:
        with self.at_end(0):
            x = a if isinstance(a, tensor) else \
                adopt(a, b.handle.type) if isinstance(b, tensor) else to_tensor(a)
        with self.at_end(1):
            y = b if isinstance(b, tensor) else adopt(b, x.handle.type)
        return x, y

    def one(self, value: Any, arm: int) -> Any:
        """The tree of a value that arm `arm` leaves; the other arm, after which nobody reads it,
        yields zeros."""
        if isinstance(value, tensor):
            with self.at_end(1 - arm):
                other = zero(self.builder, value.handle.type)
            pair = (value.handle, other) if arm == 0 else (other, value.handle)
            return self._leaf(*pair)
        if isinstance(value, tuple):
            return like(value, [self.one(v, arm) for v in value])
        return value

    def _leaf(self, a: Value, b: Value) -> Leaf:
        self.handles[0].append(a)
        self.handles[1].append(b)
        return Leaf(len(self.handles[0]) - 1)


def _is_run_time(value: Any) -> bool:
    return isinstance(value, tensor) or is_number(value)


def zero(builder: Builder, t: Type) -> Value:
    """A value of type `t` that nobody looks at."""
    element = element_of(t)
    if isinstance(element, Pointer):
        address = builder.emit(ops.Constant(value=0, types=[i64]))
        made = builder.emit(ops.Bitcast(address, types=[element]))
        return builder.emit(ops.Splat(made, types=[t])) if isinstance(t, Tensor) else made
    value: Any = 0.0 if element.is_float else False if element.is_bool else 0
    return builder.emit(ops.Constant(value=value, types=[t]))


def plain(value: Any) -> Any:
    """The compile-time value of `value`: without a wrapper, the number of a literal tensor;
    RUN_TIME for a tensor that has none."""
    if isinstance(value, tensor):
        return RUN_TIME if value.literal is None else value.literal
    return value.value if isinstance(value, constexpr) else value


class _RunTime:
    def __repr__(self) -> str:
        return "<run-time value>"


RUN_TIME: Any = _RunTime()
