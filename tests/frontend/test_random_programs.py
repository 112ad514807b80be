"""Random functions of nested branches, loops and early returns: the interpreter agrees with
Python running the same source."""

import random

import numpy as np
import pytest

from tests.frontend.harness import build, from_text
from tilec.interp.run import run
from tilec.ir.parser import parse
from tilec.ir.printer import equal, print_module

NAMES = ("a", "b", "c")


class Program:
    """A random function body over three names that stay small and non-negative."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = []
        self.loops = 0

    def emit(self, depth, text):
        self.lines.append("    " * depth + text)

    def value(self):
        r = self.random
        x = r.choice(NAMES)
        return r.choice([
            f"({x} * {r.randint(1, 5)} + {r.choice(NAMES)}) % 97", f"{x} + {r.randint(0, 3)}", x,
            f"({x} + {r.choice(NAMES)}) % 31",
            f"({x} if {self.condition()} else {r.randint(0, 9)})", str(r.randint(0, 9))])

    def condition(self):
        r = self.random
        simple = f"{r.choice(NAMES)} % {r.randint(2, 4)} == {r.randint(0, 2)}"
        return r.choice([simple, f"{r.choice(NAMES)} > {r.choice(NAMES)}",
                         f"not {simple}", f"{simple} and {r.choice(NAMES)} < 20",
                         f"{simple} or 3 < {r.choice(NAMES)} <= 40"])

    def block(self, depth, size, may_return):
        self.emit(depth, "pass")
        for _ in range(size):
            self.statement(depth, may_return)

    def statement(self, depth, may_return):
        r = self.random
        kind = r.random()
        if depth > 5 or kind < 0.35:
            self.emit(depth, f"{r.choice(NAMES)} = {self.value()}")
        elif kind < 0.42:
            # Two names: Python 3.11.2 itself stores `x, x = 1, 2` in the wrong order.
            self.emit(depth, f"{', '.join(r.sample(NAMES, 2))} = {self.value()}, "
                      f"{self.value()}")
        elif kind < 0.5:
            self.emit(depth, f"{r.choice(NAMES)} += {self.value()}")
        elif kind < 0.75:
            self.branch(depth, may_return)
        elif kind < 0.9:
            self.loop(depth)
        elif may_return:
            self.emit(depth, f"return {self.value()} + 0 * a, {r.choice(NAMES)}")

    def branch(self, depth, may_return):
        self.emit(depth, f"if {self.condition()}:")
        self.block(depth + 1, self.random.randint(0, 3), may_return)
        if self.random.random() < 0.3:
            self.emit(depth, f"elif {self.condition()}:")
            self.block(depth + 1, self.random.randint(0, 2), may_return)
        if self.random.random() < 0.5:
            self.emit(depth, "else:")
            self.block(depth + 1, self.random.randint(0, 3), may_return)

    def loop(self, depth):
        self.loops += 1
        name = f"i{self.loops}"
        if self.random.random() < 0.6:
            lo, step = self.random.choice([(0, 1), (1, 2), (6, -1)])
            hi = f"{self.random.choice(NAMES)} % 5"
            self.emit(depth, f"for {name} in range({lo}, {hi}, {step}):")
            self.block(depth + 1, self.random.randint(1, 3), False)
            self.emit(depth + 1, f"{self.random.choice(NAMES)} += {name}")
        else:
            self.emit(depth, f"{name} = 0")
            self.emit(depth, f"while {name} < {self.random.choice(NAMES)} % 4:")
            self.block(depth + 1, self.random.randint(1, 3), False)
            self.emit(depth + 1, f"{name} += 1")

    def source(self):
        self.block(1, 6, True)
        body = "\n".join(self.lines)
        return (f"@jit\ndef f(a, b, c):\n{body}\n    return a + b * 3 + c * 7, b\n\n"
                "@jit\ndef kernel(out, a, b, c):\n    x, y = f(a, b, c)\n"
                "    tl.store(out, x)\n    tl.store(out + 1, y)\n")


def wrapped(x):
    return (x + 2 ** 31) % 2 ** 32 - 2 ** 31


@pytest.mark.parametrize("seed", range(60))
def test_random_program(seed):
    source = Program(seed).source()
    kernel = from_text(source)
    module = build(kernel, {"out": "*i32", "a": "i32", "b": "i32", "c": "i32"})
    assert equal(parse(print_module(module)), module)
    inputs = random.Random(seed)
    for _ in range(4):
        args = [inputs.randint(0, 60) for _ in NAMES]
        want = kernel.fn.__globals__["f"].fn(*args)
        out = np.zeros(2, np.int32)
        run(module, "kernel", [out, *args], 1)
        assert out.tolist() == [wrapped(x) for x in want], source
