"""Runs an author's inline PTX for the interpreter: a kernel around it goes to the simulator."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

import tilec
from tilec.errors import InterpreterError
from tilec.eval.dtypes import Array, dtype_of
from tilec.ir import ops
from tilec.ir.ops.elementwise import REGISTERS, asm_letters, packed
from tilec.ir.types import Type, element_of

THREADS = 128
# What a thread is and where, which only a level with threads can tell.
_PLACES = re.compile(
    r"%(?:n?tid|n?ctaid|laneid|n?warpid|lanemask|n?cluster|gridid|dynamic_smem)\w*")
_KINDS = {"h": "b16", "r": "b32", "l": "b64", "f": "f32", "d": "f64"}


@lru_cache(maxsize=256)
def _kernel(asm: str, constraints: str) -> Any:
    """A kernel whose thread t runs `asm` on element t of an array for each of its operands."""
    outs, ins = asm_letters(constraints)
    letters = [*outs, *ins]
    lines = [".version 8.7", ".target sm_90a", ".address_size 64",
             f".visible .entry asm({', '.join(f'.param .u64 p{i}' for i in range(len(letters)))})",
             f".reqntid {THREADS}", "{", ".reg .b32 %thread, %block; .reg .b64 %at;",
             "mov.u32 %thread, %tid.x; mov.u32 %block, %ctaid.x;",
             f"mad.lo.u32 %thread, %block, {THREADS}, %thread;"]
    stores = []
    for i, letter in enumerate(letters):
        kind = _KINDS[letter]
        width = REGISTERS[letter] // 8
        place = f"ld.param.u64 %at, [p{i}]; mad.wide.u32 %at, %thread, {width}, %at;"
        lines.append(f".reg .{kind} %operand{i};")
        if i < len(outs):
            stores.append(f"{place} st.global.{kind} [%at], %operand{i};")
        else:
            lines.append(f"{place} ld.global.{kind} %operand{i}, [%at];")
    named = re.sub(r"\$(?:\{(\d+)\}|(\d+)|\$)",
                   lambda m: f"%operand{m[1] or m[2]}" if m[1] or m[2] else "$", asm)
    return tilec.sim.parse("\n".join([*lines, "{", named, "}", *stores, "ret;", "}"]))


def _registers(x: Array, t: Type, letters: Iterator[str], pack: int) -> Iterator[Array]:
    """What the registers of an operand hold. x: of groups, of `pack` elements each."""
    width, n = element_of(t).bits, packed(t, pack)
    bits = x.view(f"u{width // 8}").astype(np.uint64)
    for first in range(0, pack, n):
        held = sum(bits[:, first + k] << np.uint64(width * k) for k in range(n))
        yield np.asarray(held).astype(f"u{REGISTERS[next(letters)] // 8}")


def _elements(registers: Iterator[Array], t: Type, pack: int) -> Array:
    """The inverse of `_registers`."""
    width, n = element_of(t).bits, packed(t, pack)
    parts = [next(registers).astype(np.uint64) for _ in range(0, pack, n)]
    bits = [part >> np.uint64(width * k) for part in parts for k in range(n)][:pack]
    return np.stack(bits, axis=1).astype(f"u{width // 8}").view(dtype_of(t))


def evaluate(op: ops.InlineAsm, operands: Sequence[Array], shape: tuple[int, ...]) -> list[Array]:
    """The results of inline PTX on arrays of one shape. InterpreterError with what the simulator
    says where it cannot run it, and for registers that say which thread it is."""
    if (place := _PLACES.search(op.asm)) is not None:
        raise InterpreterError(f"the inline PTX reads {place[0]}, which only threads have", op.loc,
                               "run the kernel at level ptx")
    outs, ins = asm_letters(op.constraints)
    count, pack = prod(shape), op.pack
    groups = -(-count // (pack * THREADS)) * THREADS
    # Beyond the last element it is repeated.
    chosen = np.minimum(np.arange(groups * pack), count - 1).reshape(groups, pack)
    letters = iter(ins)
    given = [held for x, v in zip(operands, op.inputs, strict=True)
             for held in _registers(np.ascontiguousarray(x).reshape(-1)[chosen], v.type, letters,
                                    pack)]
    made = [np.zeros(groups, f"u{REGISTERS[letter] // 8}") for letter in outs]
    grid = groups // THREADS, 1, 1
    try:
        tilec.sim.run(_kernel(op.asm, op.constraints), "asm", [*made, *given], grid)
    except tilec.sim.SimError as e:
        raise InterpreterError(f"the inline PTX cannot run: {e}", op.loc) from e
    registers = iter(made)
    return [_elements(registers, v.type, pack).reshape(-1)[:count].reshape(shape)
            for v in op.results]
