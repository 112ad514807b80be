"""Makes failing programs smaller: statements go, expressions become one of their operands or a
constant, control flow becomes its body, masks and options go, extents fall."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tests.fuzz.numerics import Reject
from tests.fuzz.program import For, If, Leave, Let, Program, Statement, While, walk

EFFECTS = ("store", "atomic", "block_store", "descriptor_store", "descriptor_atomic", "scatter")


def prune(block: list[Statement], known: set[str], looping: bool = False) -> list[Statement]:
    """Without statements that use what nothing defines, or leave a loop that is not there."""
    out: list[Statement] = []
    known = set(known)
    for s in block:
        if any(isinstance(a, str) and a not in known for a in s.args):
            continue
        if isinstance(s, Leave) and s.how != "return" and not looping:
            continue
        inner = known | ({s.var} if isinstance(s, For) else set())
        if isinstance(s, (For, While)):
            s = replace(s, body=prune(s.body, inner, True))
        elif isinstance(s, If):
            s = replace(s, then=prune(s.then, inner, looping),
                        other=prune(s.other, inner, looping))
        elif isinstance(s, Let):
            known |= set(s.names)
        out.append(s)
    return out


def without_dead(block: list[Statement], used: set[str]) -> list[Statement]:
    """Without operations whose results nothing uses, and without empty control flow."""
    out: list[Statement] = []
    for s in block:
        if isinstance(s, Let) and s.names and s.op not in EFFECTS and not used & {*s.names}:
            continue
        if isinstance(s, (For, While)):
            s = replace(s, body=without_dead(s.body, used))
        elif isinstance(s, If):
            s = replace(s, then=without_dead(s.then, used), other=without_dead(s.other, used))
        if s.blocks() and not any(s.blocks()):
            continue
        out.append(s)
    return out


def cleaned(program: Program) -> Program:
    names = {a.name for a in program.arguments} | {*program.constexprs}
    body = prune(program.body, names)
    while True:
        used = {a for s in walk(body) for a in s.args if isinstance(a, str)}
        less = without_dead(body, used)
        if len([*walk(less)]) == len([*walk(body)]):
            return replace(program, body=less)
        body = less


def edited(block: list[Statement], at: int, edit: Callable[[Statement], list[Statement]]
           ) -> list[Statement]:
    """The block with statement number `at`, counted as `walk` goes, replaced."""
    out: list[Statement] = []
    for s in block:
        if at == 0:
            out += edit(s)
        elif isinstance(s, (For, While)):
            out.append(replace(s, body=edited(s.body, at - 1, edit)))
        elif isinstance(s, If):
            then = len([*walk(s.then)])
            out.append(replace(s, then=edited(s.then, at - 1, edit),
                               other=edited(s.other, at - 1 - then, edit)))
        else:
            out.append(s)
        at -= 1 + sum(len([*walk(b)]) for b in s.blocks())
    return out


def renamed(block: list[Statement], old: str, new: str) -> list[Statement]:
    """The block with uses of one name made uses of another."""
    out = copy.deepcopy(block)
    for s in walk(out):
        for name in ("args", "lo", "hi", "step", "limit", "cond"):
            held = getattr(s, name, None)
            if name == "args" and isinstance(s, Let):
                s.args = tuple(new if a == old else a for a in s.args)
            elif name != "args" and held == old:
                setattr(s, name, new)
    return out


# -- what is tried --------------------------------------------------------------------------------

def candidates(program: Program) -> Iterator[Program]:
    """Simpler programs, the much simpler ones first; some have no meaning."""
    yield from _fewer(program)
    yield from _settings(program)
    yield from _unwrapped(program)
    yield from _operands(program)
    yield from _smaller(program)


def _fewer(program: Program) -> Iterator[Program]:
    count = len(program.body)
    size = count
    while size:
        for first in range(0, count, size):
            body = program.body[:first] + program.body[first + size:]
            yield replace(program, body=body)
        size //= 2
    for at in range(len([*walk(program.body)])):
        yield replace(program, body=edited(program.body, at, lambda s: []))


def _settings(program: Program) -> Iterator[Program]:
    if program.grid != (1, 1):
        yield replace(program, grid=(1, 1))
    for name, value in (("num_stages", 1), ("num_warps", 1), ("num_warps", 4)):
        if program.options.get(name, value) > value:
            yield replace(program, options=program.options | {name: value})
    for name in program.options:
        yield replace(program, options={k: v for k, v in program.options.items() if k != name})
    for i, a in enumerate(program.arguments):
        if a.shift:
            arguments = [*program.arguments]
            arguments[i] = replace(a, shift=0)
            yield replace(program, arguments=arguments)


def _unwrapped(program: Program) -> Iterator[Program]:
    def body(s: Statement) -> list[Statement]:
        if isinstance(s, For):
            return [Let("to_tensor", (s.var,), (), {"x": s.lo}), *s.body] \
                if isinstance(s.lo, int) else [Let("copy", (s.var,), (s.lo,)), *s.body]
        return s.body if isinstance(s, While) else s.then if isinstance(s, If) else [s]

    for at, s in enumerate(walk(program.body)):
        if s.blocks():
            yield replace(program, body=edited(program.body, at, body))
        if isinstance(s, For) and s.options:
            for name in s.options:
                less = {k: v for k, v in s.options.items() if k != name}
                yield replace(program, body=edited(
                    program.body, at, lambda s, less=less: [replace(s, options=less)]))


def _operands(program: Program) -> Iterator[Program]:
    types: dict[str, Any] = {}
    program.expected(types)
    for at, s in enumerate(walk(program.body)):
        if not isinstance(s, Let):
            continue
        for i, a in enumerate(s.args):
            if s.op in ("load", "store", "atomic") and i > 0 and isinstance(a, str) and \
                    (s.op, i) != ("store", 1):
                args = (*s.args[:i], *([None] * (len(s.args) - i)))
                yield replace(program, body=edited(
                    program.body, at, lambda s, args=args: [replace(s, args=args)]))
        for name in s.names:
            for a in s.args:
                if isinstance(a, str) and types.get(a, 0) == types.get(name):
                    yield replace(program, body=renamed(edited(program.body, at, lambda s: []),
                                                        name, a))
        if len(s.names) == 1 and s.op not in ("full", "lanes", "program") and \
                isinstance(types.get(s.names[0], ("",))[-1], tuple) and \
                len(types[s.names[0]]) == 2 and not types[s.names[0]][0].startswith("*"):
            t, shape = types[s.names[0]]
            constant = Let("full", s.names, (), {"shape": shape, "x": 1, "t": t})
            yield replace(program, body=edited(program.body, at, lambda s, c=constant: [c]))


def _smaller(program: Program) -> Iterator[Program]:
    extents = {n for s in walk(program.body) if isinstance(s, Let)
               for n in s.attrs.get("shape", ()) if isinstance(n, int)}
    for n in sorted(extents, reverse=True):
        for less in (1, 2, 4, n // 2):
            if 0 < less < n:
                body = copy.deepcopy(program.body)
                for s in walk(body):
                    if isinstance(s, Let) and "shape" in s.attrs:
                        s.attrs["shape"] = tuple(less if e == n else e for e in s.attrs["shape"])
                yield replace(program, body=body)


def shrink(program: Program, fails: Callable[[Program], bool], seconds: float = 120.0) -> Program:
    """A smaller program that still fails. fails: whether a program with a meaning does."""
    end = time.monotonic() + seconds

    tried: set[str] = set()

    def still(candidate: Program) -> bool:
        text = f"{candidate.source()}{candidate.grid}{candidate.options}{candidate.arguments}"
        if text in tried:
            return False
        tried.add(text)
        try:
            candidate.expected()
        except Reject:
            return False
        return fails(candidate)

    first = cleaned(program)
    if still(first):
        program = first
    improved = True
    while improved and time.monotonic() < end:
        improved = False
        for candidate in candidates(program):
            if time.monotonic() > end:
                break
            candidate = cleaned(candidate)
            if _weight(candidate) < _weight(program) and still(candidate):
                program, improved = candidate, True
                break
    return program


def _weight(program: Program) -> tuple[Any, ...]:
    statements = [*walk(program.body)]
    lets = [s for s in statements if isinstance(s, Let)]
    elements = sum(sum(s.attrs.get("shape", ())) for s in lets)
    options = sum(len(s.options) for s in statements if isinstance(s, For))
    masks = sum(a is not None for s in lets for a in s.args)
    simple = sum(s.op == "full" for s in lets)
    grid = program.grid[0] * program.grid[1]
    shifts = sum(a.shift for a in program.arguments)
    numbers = sum(v for v in program.options.values() if isinstance(v, int))
    return (len(statements), masks - simple, grid, options, elements, len(program.options), numbers,
            shifts, len(program.source()))
