"""The tile pipeline on random programs: after each pass the interpreter prints the same numbers."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tilec.errors import InterpreterError
from tilec.interp.run import run
from tilec.ir import ops
from tilec.ir.core import Block, Builder, Func, Module, Value
from tilec.ir.printer import print_module
from tilec.ir.types import (
    Scalar,
    Tensor,
    Type,
    element_of,
    f16,
    f32,
    i1,
    i8,
    i32,
    shape_of,
    u8,
    u32,
    with_element,
)
from tilec.ir.verifier import verify
from tilec.passes.base import parse_pipeline
from tilec.runtime.validation import Tolerance, difference

ELEMENTS = [i1, i8, u8, i32, u32, f16, f32]
INTEGERS = [0, 1, -1, 2, 7, 100]
FLOATS = [0.0, -0.0, 1.0, 0.5, float("inf"), float("nan"), -3.0]
INT_OPS = [ops.Add, ops.Sub, ops.Mul, ops.And, ops.Or, ops.Xor, ops.Shl, ops.Shr, ops.Minimum,
           ops.Div, ops.Rem]
FLOAT_OPS = [ops.Add, ops.Sub, ops.Mul, ops.Minimum, ops.Maximum, ops.Div]


class Program:
    """A function whose values all come from its scalar arguments and constants."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.func = Func("k", Block(ELEMENTS))
        self.values: list[Value] = list(self.func.args)
        self.depth = 0
        b = Builder(self.func.body)
        self.fill(b, 12)
        b.insert(ops.Print(self.values[-6:]))
        b.insert(ops.Return())
        self.module = Module([self.func])

    def fill(self, b: Builder, count: int) -> None:
        makers = [self.constant, self.binary, self.binary, self.binary, self.other, self.shape,
                  self.shape, self.control]
        for _ in range(count):
            self.rng.choice(makers)(b)

    def put(self, b: Builder, op: object) -> None:
        self.values += b.insert(op).results  # type: ignore[arg-type]

    def like(self, t: Type) -> Value:
        return self.rng.choice([v for v in self.values if v.type == t])

    def constant(self, b: Builder) -> None:
        t: Type = self.rng.choice(self.values).type
        element = element_of(t)
        assert isinstance(element, Scalar)
        number: int | float | bool = self.rng.choice(FLOATS if element.is_float else INTEGERS)
        if element.is_bool:
            number = bool(number)
        elif not element.is_float and not element.is_signed:
            number = abs(int(number))
        self.put(b, ops.Constant(value=number, types=[t]))

    def binary(self, b: Builder) -> None:
        x = self.rng.choice(self.values)
        y = self.like(x.type)
        element = element_of(x.type)
        assert isinstance(element, Scalar)
        if self.rng.random() < 0.2:
            self.put(b, ops.Cmp(x, y, predicate=self.rng.choice(["eq", "ne", "lt", "ge"])))
        else:
            self.put(b, self.rng.choice(FLOAT_OPS if element.is_float else INT_OPS)(x, y))

    def other(self, b: Builder) -> None:
        x = self.rng.choice(self.values)
        element = element_of(x.type)
        assert isinstance(element, Scalar)
        conditions = [v for v in self.values if v.type == with_element(x.type, i1)]
        kind = self.rng.randrange(4)
        if kind == 0:
            to = self.rng.choice(ELEMENTS)
            self.put(b, ops.Cast(x, types=[with_element(x.type, to)]))
        elif kind == 1 and conditions:
            self.put(b, ops.Select(self.rng.choice(conditions), x, self.like(x.type)))
        elif kind == 2 and not element.is_float:
            self.put(b, ops.Not(x))
        elif not element.is_bool:
            self.put(b, ops.Neg(x))

    def shape(self, b: Builder) -> None:
        x = self.rng.choice(self.values)
        shape, element = shape_of(x.type), element_of(x.type)
        assert isinstance(element, Scalar)
        if not shape:
            to = self.rng.choice([(3,), (1,), (2, 1)])
            self.put(b, ops.Splat(x, types=[Tensor(to, element)]))
        elif shape[-1] == 2 and len(shape) > 1 and self.rng.random() < 0.5:
            self.put(b, ops.Split(x, index=self.rng.randrange(2)))
        elif len(shape) < 3 and self.rng.random() < 0.2:
            self.put(b, ops.Join(x, self.like(x.type)))
        elif len(shape) < 3 and self.rng.random() < 0.4:
            self.put(b, ops.ExpandDims(x, axis=self.rng.randint(0, len(shape))))
        elif 1 in shape and self.rng.random() < 0.5:
            to = tuple(2 if n == 1 else n for n in shape)
            self.put(b, ops.Broadcast(x, types=[Tensor(to, element)]))
        elif self.rng.random() < 0.5:
            order = list(range(len(shape)))
            self.rng.shuffle(order)
            self.put(b, ops.Trans(x, order=tuple(order)))
        else:
            size = int(np.prod(shape))
            to = self.rng.choice([(size,), (1, size), shape, shape[::-1]])
            self.put(b, ops.Reshape(x, types=[Tensor(to, element)]))

    def control(self, b: Builder) -> None:
        if self.depth == 2:
            return
        carried = self.rng.choices(self.values, k=self.rng.randint(0, 3))
        types = [v.type for v in carried]
        if self.rng.random() < 0.5:
            cond = self.like(i1)
            self.put(b, ops.If(cond, then=self.region([], types), orelse=self.region([], types)))
            return
        lo, hi, step = (b.emit(ops.Constant(value=self.rng.choice(choices), types=[i32]))
                        for choices in ([0, 2], [0, 1, 3, 5], [1, 2]))
        self.put(b, ops.For(lo, hi, step, carried, body=self.region([i32, *types], types),
                            unroll=self.rng.choice([0, 0, 2, 4])))

    def region(self, args: list[Type], results: list[Type]) -> Block:
        block, outer = Block(args), list(self.values)
        self.values += block.args
        self.depth += 1
        b = Builder(block)
        self.fill(b, 4)
        if self.rng.random() < 0.3:
            b.insert(ops.Print(self.values[-1:]))
        b.insert(ops.Yield([self.like(t) for t in results]))
        self.depth -= 1
        self.values = outer
        return block


def printed(module: Module, args: list[object]) -> list[str]:
    lines: list[str] = []
    run(module, "k", args, 1, seed=0, on_print=lines.append)
    return lines


TILE = "canonicalize,reorder_broadcast,cse,licm,unroll,dce,canonicalize,cse"
GPU = "assign_layouts,coalesce,remove_layout_conversions,canonicalize,reorder_broadcast,cse,licm," \
    "reorder,dce"
LOWERED = "allocate_shared,insert_barriers"


def check(rng: random.Random, pipeline: str) -> None:
    module = Program(rng).module
    verify(module)
    args: list[object] = [True, -3, 200, 7, 5, 1.5, -0.0]
    try:
        want = printed(module, args)
    except InterpreterError:  # a branch on a division by zero: anything may happen
        reject()
    for p in parse_pipeline(pipeline):
        before = print_module(module)
        try:
            p.run(module)
            verify(module)
            found = difference([], ([], want), ([], printed(module, args)), Tolerance())
            assert found is None, found
        except Exception as e:
            raise AssertionError(f"{p} broke\n{before}which became\n{print_module(module)}") from e


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False))
def test_tile_passes(rng: random.Random) -> None:
    check(rng, TILE)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_passes_down_to_lowered(rng: random.Random) -> None:
    check(rng, f"{GPU},{LOWERED}")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False))
def test_all_passes(rng: random.Random) -> None:
    check(rng, f"{TILE},{GPU},{LOWERED}")
