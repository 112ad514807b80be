"""Moves registers to and from shared memory, by vectors or by matrices, as a route says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tilec.codegen.context import CodeGen, thread_columns
from tilec.codegen.emit import Reg
from tilec.ir.linear import LinearLayout
from tilec.ir.swizzle import Route, split_offsets

Address = Callable[[Reg], Reg]


def load_matrices(cg: CodeGen) -> bool:
    """Whether the target has ldmatrix."""
    return cg.target.has("ldmatrix")


def store_matrices(cg: CodeGen) -> bool:
    """Whether the target has stmatrix."""
    return cg.target.has("stmatrix")


def load_route(cg: CodeGen, route: Route, elem: str, size: int, address: Address, more: int = 0
               ) -> dict[int, Reg]:
    """The elements of each register of the route's order. address: a pointer from a byte offset;
    more: constant bytes to add."""
    e, found = cg.e, dict[int, Reg]()
    for registers, pointer in _instructions(cg, route, size, address, more):
        if route.matrix is None:
            part = e.load(pointer, elem, len(registers), size * len(registers))
            lanes = e.lane_list(part)
        else:
            each = route.matrix.per_word
            words = _ldmatrix(cg, pointer, route.matrix.count, route.matrix.trans)
            lanes = [lane for word in words
                     for lane in e.lane_list(e.bitcast(word, elem, each if each > 1 else 0))]
        found.update(zip(registers, lanes, strict=True))
    return found


def store_route(cg: CodeGen, route: Route, x: Reg, names: Sequence[int], size: int,
                address: Address, more: int = 0) -> None:
    """Store lane names[r] of `x` for each register r of the route's order."""
    e = cg.e
    for registers, pointer in _instructions(cg, route, size, address, more):
        if route.matrix is None:
            e.store(e.gather(x, [names[r] for r in registers]), pointer, size * len(registers))
            continue
        each = route.matrix.per_word
        words = [e.bitcast(e.gather(x, [names[r] for r in registers[i:i + each]]), "i32", 0)
                 for i in range(0, len(registers), each)]
        _stmatrix(cg, pointer, words, route.matrix.trans)


def _instructions(cg: CodeGen, route: Route, size: int, address: Address, more: int
                  ) -> Iterable[tuple[tuple[int, ...], Reg]]:
    groups = route.groups()
    pointers = shared_pointers(cg, route.address, size, [(g[0], more) for g in groups], address)
    return zip(groups, pointers, strict=True)


def _ldmatrix(cg: CodeGen, pointer: Reg, count: int, trans: bool) -> list[Reg]:
    e = cg.e
    result = "i32" if count == 1 else "{" + ", ".join(["i32"] * count) + "}"
    name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if trans else ''}.b16.p3"
    whole = e.call(name, result, 0, (pointer,))
    if count == 1:
        return [whole]
    return [e.new(f"extractvalue {result} {whole.ref}, {i}", "i32") for i in range(count)]


def _stmatrix(cg: CodeGen, pointer: Reg, words: Sequence[Reg], trans: bool) -> None:
    form = f"x{len(words)}{'.trans' if trans else ''}"
    cg.e.call_void(f"llvm.nvvm.stmatrix.sync.aligned.m8n8.{form}.b16.p3", (pointer, *words))


def shared_pointers(cg: CodeGen, access: LinearLayout, size: int,
                    places: Iterable[tuple[int, int]], address: Address) -> list[Reg]:
    """Pointers to elements of `size` bytes, for (register, constant bytes to add) each.

    The thread's part is computed once; a register adds a constant where its bits are the thread's
    own in no case, else one XOR. address: a pointer from a byte offset.
    """
    e, parts = cg.e, split_offsets(access)
    base = cg.thread_bits([c * size for c in thread_columns(access)])
    bases: dict[int, Reg] = {}
    out = []
    for register, more in places:
        mixed, apart = parts[register]
        if mixed not in bases:
            bases[mixed] = address(e.int_op("xor", base, mixed * size))
        out.append(cg.shift(bases[mixed], apart * size + more))
    return out
