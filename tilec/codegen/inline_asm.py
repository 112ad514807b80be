"""Lowering of an author's inline PTX: elements are packed into the registers of its constraints."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.codegen.context import CodeGen, fragment_of, lower
from tilec.codegen.emit import BITS, POINTER, Emit, Reg, llvm_element
from tilec.codegen.values import full
from tilec.ir import ops
from tilec.ir.ops.elementwise import REGISTERS, asm_letters, packed
from tilec.ir.types import Tensor, element_of

_FLOATS = {"f": "float", "d": "double"}


@lower(ops.InlineAsm)
def _inline_asm(cg: CodeGen, op: ops.InlineAsm) -> None:
    outs, ins = asm_letters(op.constraints)
    tile = isinstance(op.results[0].type, Tensor)
    count = fragment_of(op.results[0]).num_registers if tile else 1
    inputs = [(cg.whole(v), packed(v.type, op.pack)) for v in op.inputs]
    results: list[list[Reg]] = [[] for _ in op.results]
    for first in range(0, count, op.pack):
        # Beyond the last element it is repeated.
        lanes = [min(first + k, count - 1) for k in range(op.pack)]
        groups = [cg.e.gather(reg, lanes[k:k + n])
                  for reg, n in inputs for k in range(0, op.pack, n)]
        args = [_to_register(cg.e, *x) for x in zip(groups, ins, strict=True)]
        made = iter(cg.e.asm(op.asm, op.constraints, args, [_register(x) for x in outs],
                             effects=not op.is_pure, foreign=True))
        for value, found in zip(op.results, results, strict=True):
            elem, n = llvm_element(element_of(value.type)), packed(value.type, op.pack)
            for _ in range(0, op.pack, n):
                found += _from_register(cg.e, next(made), elem, n)
    for value, found in zip(op.results, results, strict=True):
        reg = cg.e.build(found[:count])
        cg.env[value] = full(reg) if tile else reg


def _register(letter: str) -> str:
    return _FLOATS.get(letter, f"i{REGISTERS[letter]}")


def _to_register(e: Emit, x: Reg, letter: str) -> Reg:
    if x.elem == POINTER:
        return e.convert("ptrtoint", x, "i64")
    if letter in _FLOATS:
        return e.bitcast(x, _FLOATS[letter], 0)
    return _widened(e, x, f"i{REGISTERS[letter]}")


def _widened(e: Emit, x: Reg, to: str) -> Reg:
    whole = e.bitcast(x, f"i{x.bits * x.lanes}", 0)
    return e.resize(whole, to, False)


def _from_register(e: Emit, x: Reg, elem: str, n: int) -> Sequence[Reg]:
    if elem == POINTER:
        return [e.convert("inttoptr", x, POINTER)]
    bits = e.bitcast(x, f"i{x.bits}", 0)
    part = e.resize(bits, f"i{BITS[elem] * n}", False)
    return e.lane_list(e.bitcast(part, elem, n if n > 1 else 0))
