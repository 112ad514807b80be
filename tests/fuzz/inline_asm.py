"""Inline PTX in random programs: its text, its meaning in numpy (docs/semantics.md, section 6), and
how it is drawn. What it does treats the elements of a register alike."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.generate import Generator, Kinds
from tests.fuzz.numerics import INTS, NUMPY, Reject, width
from tests.fuzz.ops import number
from tests.fuzz.program import Machine, Value, op, value

LETTERS = {16: "h", 32: "r", 64: "l"}
# The instruction, of as many bits as a register has, and what it does to the bits.
INSTRUCTIONS = {"xor": np.bitwise_xor, "or": np.bitwise_or, "and": np.bitwise_and,
                "not": lambda a, b: np.invert(a)}


def _registers(bits: int, pack: int) -> tuple[int, int]:
    """(bits of a register, how many hold `pack` elements)."""
    together = min(max(32 // bits, 1), pack)
    return max(bits * together, 16), -(-pack // together)


def _text(a: str, b: str, t: str, name: str, pack: int, form: str) -> str:
    bits, count = _registers(width(t), pack)
    letter = LETTERS[bits]
    second = "" if name == "not" else ", ${}"
    lines = [f"{name}.b{bits} ${i}, ${count + i}{second.format(2 * count + i)};"
             for i in range(count)]
    constraints = ",".join([f"=&{letter}"] * count + [letter] * 2 * count)
    return f"tl.inline_asm_elementwise({' '.join(lines)!r}, {constraints!r}, [{a}, {b}], " \
        f"dtype=tl.{t}, is_pure={form == 'pure'}, pack={pack})"


@op("inline_asm", _text)
def _(m: Machine, a: Any, b: Any, t: str, name: str, pack: int, form: str) -> Value:
    if any(number(v).dtype not in INTS or v.dtype == "int1" or width(v.dtype) != width(t)
           for v in (a, b)):
        raise Reject("integers of one width")
    x, y = (v.x.view(NUMPY[t]) for v in (a, b))
    return value(np.asarray(INSTRUCTIONS[name](x, y)), t, a.poison, b.poison)


def inline_asm(g: Generator) -> None:
    rng = g.rng
    x = g.any(lambda v: v.dtype in INTS and v.dtype != "int1")
    bits = width(g.value(x).dtype)
    g.put("inline_asm", x, g.like(x), t=f"{rng.choice(['int', 'uint'])}{bits}",
          name=rng.choice([*INSTRUCTIONS]), pack=rng.choice([1, 1, 2, 4, 8]),
          form=rng.choice(["pure", "pure", "kept"]))


INLINE: Kinds = {inline_asm: 2}
