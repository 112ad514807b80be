"""Atomics of every kind, dtype, order and scope at every level, on random numbers, against numpy.

The meaning here is written from docs/semantics.md, section 9, lane by lane.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tilec.errors import IRError
from tilec.ir.parser import parse

LEVELS = ("tile", "gpu", "lowered", "ptx")
DTYPES = {"i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64, "f16": np.float16,
          "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64, "i16": np.int16,
          "u16": np.uint16}
NUMBERS = ("i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64")
INTEGERS, WIDE = NUMBERS[:4], (*NUMBERS[:4], "f32", "f64")
TYPES = {"add": NUMBERS, "max": NUMBERS, "min": NUMBERS, "and": INTEGERS, "or": INTEGERS,
         "xor": INTEGERS, "xchg": WIDE, "cas": tuple(DTYPES)}
SEMS, SCOPES = ("relaxed", "acquire", "release", "acq_rel"), ("gpu", "cta", "sys")


@tilec.jit
def update(p, c, v, m, KIND: tl.constexpr, SEM: tl.constexpr, SCOPE: tl.constexpr):
    if KIND == "add":
        return tl.atomic_add(p, v, m, SEM, SCOPE)
    elif KIND == "max":
        return tl.atomic_max(p, v, mask=m, sem=SEM, scope=SCOPE)
    elif KIND == "min":
        return p.atomic_min(v, mask=m, sem=SEM, scope=SCOPE)
    elif KIND == "and":
        return tl.atomic_and(p, v, mask=m, sem=SEM, scope=SCOPE)
    elif KIND == "or":
        return p.atomic_or(v, mask=m, sem=SEM, scope=SCOPE)
    elif KIND == "xor":
        return tl.atomic_xor(p, v, mask=m, sem=SEM, scope=SCOPE)
    elif KIND == "xchg":
        return tl.atomic_xchg(p, v, mask=m, sem=SEM, scope=SCOPE)
    else:
        return p.atomic_cas(c, v, sem=SEM, scope=SCOPE)


@tilec.jit
def tiles(x, i, c, v, o, n, KIND: tl.constexpr, SEM: tl.constexpr, SCOPE: tl.constexpr,
          USED: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    inside = at < n
    # What atomic_cas, which has no mask, does beyond the end: slots of their own.
    slot = tl.where(inside, tl.load(i + at, mask=inside, other=0), n + 100 + at)
    old = update(x + slot, tl.load(c + at, mask=inside, other=0),
                 tl.load(v + at, mask=inside, other=0), inside, KIND, SEM, SCOPE)
    if USED:
        tl.store(o + at, old, mask=inside)


@tilec.jit
def scalars(x, c, v, o, KIND: tl.constexpr, SEM: tl.constexpr, SCOPE: tl.constexpr,
            USED: tl.constexpr):
    i = tl.program_id(0)
    old = update(x + i, tl.load(c + i), tl.load(v + i), i != 1, KIND, SEM, SCOPE)
    if USED:
        if KIND == "cas":
            tl.store(o + i, old)
        else:
            tl.store(o + i, old, mask=i != 1)


def random(rng: np.random.Generator, dtype: str, count: int, small: bool = False) -> np.ndarray:
    """Numbers of all sizes, with the extremes and zeros of both signs, but no NaN. small: whole
    numbers, whose sums are exact in any order."""
    kind = np.dtype(DTYPES[dtype])
    if dtype[0] in "iu":
        info = np.iinfo(kind)
        out = rng.integers(info.min, info.max, count, kind, endpoint=True)
        special = np.array([info.min, info.max, 0, 1], kind)
        return np.where(rng.random(count) < 0.2, special[rng.integers(0, 4, count)], out)
    if small:
        return rng.integers(-4, 5, count).astype(kind)
    out = (rng.standard_normal(count) * 4.0 ** rng.integers(-5, 5, count)).astype(kind)
    special = np.array([0.0, -0.0, np.inf, -np.inf, 1.0]).astype(kind)
    return np.where(rng.random(count) < 0.3, special[rng.integers(0, 5, count)], out)


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.itemsize}")


def greater(a: Any, b: Any) -> bool:
    return bool(a > b or a == b and np.signbit(b) and not np.signbit(a))


MEANING: dict[str, Callable[..., Any]] = {
    "add": lambda old, c, v: old + v, "xchg": lambda old, c, v: v,
    "max": lambda old, c, v: v if greater(v, old) else old,
    "min": lambda old, c, v: v if greater(old, v) else old,
    "and": lambda old, c, v: old & v, "or": lambda old, c, v: old | v,
    "xor": lambda old, c, v: old ^ v,
    "cas": lambda old, c, v: v if old.tobytes() == c.tobytes() else old}


@np.errstate(all="ignore")
def expected(kind: str, x: np.ndarray, slots: np.ndarray, c: np.ndarray, v: np.ndarray
             ) -> tuple[np.ndarray, np.ndarray]:
    """(memory, old values) after the lanes, one after another."""
    x, old = x.copy(), np.empty(len(slots), x.dtype)
    for lane, at in enumerate(slots.tolist()):
        old[lane] = x[at]
        x[at] = MEANING[kind](x[at], c[lane], v[lane])
    return x, old


def poisoned(shape: int, dtype: str) -> np.ndarray:
    out = np.empty(shape, DTYPES[dtype])
    out.view(np.uint8)[...] = 0xA5
    return out


def equal(got: np.ndarray, want: np.ndarray, what: str) -> None:
    """The same bits, but for the bits of a NaN."""
    nan = np.isnan(want.astype(np.float64)) if want.dtype.kind not in "iu" else False
    np.testing.assert_array_equal(np.where(nan, 0, bits(got)), np.where(nan, 0, bits(want)), what)
    assert np.isnan(got.astype(np.float64))[nan].all() if np.any(nan) else True


def targets(dtype: str) -> list[str]:
    return [t for t in ("sm_75", "sm_80", "sm_90a") if (dtype, t) != ("bf16", "sm_75")]


CASES = [(kind, dtype, target) for kind, dtypes in TYPES.items() for dtype in dtypes
         for target in targets(dtype)]


@pytest.mark.sample(16)
@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize(("kind", "dtype", "target"), CASES)
def test_tiles(kind, dtype, target, used, rng) -> None:
    """Each lane has an element of its own: memory and old values are what numpy says."""
    n, block = int(rng.integers(60, 200)), int(rng.choice([16, 48, 64]))
    grid = -(-n // block)
    x0, v = random(rng, dtype, n + 300 + grid * block), random(rng, dtype, n)
    slots = rng.permutation(n + 90)[:n].astype(np.int32)
    c = np.where(rng.random(n) < 0.6, x0[slots], v)
    want, old = expected(kind, x0, slots, c, v)
    order = {"SEM": str(rng.choice(SEMS)), "SCOPE": str(rng.choice(SCOPES))}
    made = tiles.warmup(x0, slots, c, v, v, n, KIND=kind, USED=used, B=block, grid=(grid,),
                        target=target, num_warps=int(rng.choice([1, 4])), **order)
    for level in LEVELS:
        x, o = x0.copy(), poisoned(n, dtype)
        made.run([x, slots, c, v, o, n], grid, level=level, seed=int(rng.integers(100)))
        equal(x[:n + 100], want[:n + 100], f"memory, {level}")
        equal(o, old if used else poisoned(n, dtype), f"old values, {level}")


@pytest.mark.sample(10)
@pytest.mark.parametrize(("kind", "dtype", "target"), [c for c in CASES if c[0] not in (
    "xchg", "cas")])
def test_lanes_and_programs_that_meet(kind, dtype, target, rng) -> None:
    """Many lanes of many programs update few elements, in any order."""
    n, block, grid, few = 150, 64, 3, 7
    x0, v = random(rng, dtype, n + 400, True), random(rng, dtype, n, True)
    slots = rng.integers(0, few, n).astype(np.int32)
    want, _ = expected(kind, x0, slots, v, v)
    made = tiles.warmup(x0, slots, v, v, v, n, KIND=kind, SEM="relaxed", SCOPE="gpu", USED=False,
                        B=block, grid=(grid,), target=target)
    for level in LEVELS:
        x = x0.copy()
        made.run([x, slots, v, v, v.copy(), n], grid, level=level, seed=int(rng.integers(100)))
        equal(x[:few], want[:few], level)


@pytest.mark.sample(8)
@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize(("kind", "dtype", "target"), CASES)
def test_scalars(kind, dtype, target, used, rng) -> None:
    """A program at a time; the mask of one is false."""
    x0, v = random(rng, dtype, 5), random(rng, dtype, 5)
    c = np.where(rng.random(5) < 0.5, x0, v)
    want, old = expected(kind, x0, np.arange(5), c, v)
    if kind != "cas":
        want[1], old[1] = x0[1], poisoned(1, dtype)[0]
    made = scalars.warmup(x0, c, v, v, KIND=kind, SEM=str(rng.choice(SEMS)), USED=used,
                          SCOPE=str(rng.choice(SCOPES)), grid=(5,), target=target)
    for level in LEVELS:
        x, o = x0.copy(), poisoned(5, dtype)
        made.run([x, c, v, o], 5, level=level, seed=int(rng.integers(100)))
        equal(x, want, f"memory, {level}")
        equal(o, old if used else poisoned(5, dtype), f"old values, {level}")


@pytest.mark.parametrize("dtype", ["i32", "u64", "f32"])
def test_what_xchg_takes_out_is_what_went_in(dtype, rng) -> None:
    """Every value is found once, or is the last one."""
    n, few = 130, 3
    x0, v = random(rng, dtype, n + 400), random(rng, dtype, n)
    slots = rng.integers(0, few, n).astype(np.int32)
    made = tiles.warmup(x0, slots, v, v, v, n, KIND="xchg", SEM="acq_rel", SCOPE="gpu", USED=True,
                        B=64, grid=(3,))
    for level in LEVELS:
        x, o = x0.copy(), poisoned(n, dtype)
        made.run([x, slots, v, v, o, n], 3, level=level, seed=7)
        for s in range(few):
            went_in = [*bits(v[slots == s]).tolist(), *bits(x0[s:s + 1]).tolist()]
            came_out = [*bits(o[slots == s]).tolist(), *bits(x[s:s + 1]).tolist()]
            assert Counter(went_in) == Counter(came_out), level


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_where_a_nan_meets_a_number_either_stays(kind, dtype, rng) -> None:
    n = 64
    nan = np.full(n, np.nan).astype(DTYPES[dtype])
    x0, v = random(rng, dtype, n + 400), random(rng, dtype, n)
    x0[:n:3], v[1::3] = nan[:n:3], nan[1::3]
    slots = np.arange(n, dtype=np.int32)
    made = tiles.warmup(x0, slots, v, v, v, n, KIND=kind, SEM="relaxed", SCOPE="gpu", USED=False,
                        B=64, grid=(1,))
    for level in LEVELS:
        x = x0.copy()
        made.run([x, slots, v, v, v.copy(), n], 1, level=level)
        assert ((bits(x[:n]) == bits(x0[:n])) | (bits(x[:n]) == bits(v))).all(), level
        equal(x[2:n:3], expected(kind, x0, slots, v, v)[0][2:n:3], level)


# -- instructions ---------------------------------------------------------------------------------

def ptx_of(kind: str, dtype: str, used: bool, sem: str = "relaxed", target: str = "sm_90a") -> str:
    name = {"i": "i", "u": "u", "f": "fp", "b": "bf"}[dtype[0]] + dtype.lstrip("iufb")
    made = tilec.compile(
        scalars, {"x": f"*{name}", "c": f"*{name}", "v": f"*{name}", "o": f"*{name}"},
        {"KIND": kind, "SEM": sem, "SCOPE": "gpu", "USED": used}, target=target)
    return "\n".join(line.strip() for line in made.asm["ptx"].splitlines()
                     if re.search(r"\b(atom|red)\.", line))


@pytest.mark.parametrize(("kind", "dtype", "used", "instructions"), [
    ("add", "f16", False, ["red.relaxed.gpu.global.add.noftz.f16"]),
    ("add", "bf16", True, ["atom.relaxed.gpu.global.add.noftz.bf16"]),
    ("max", "i32", False, ["red.relaxed.gpu.global.max.s32"]),
    ("min", "u64", True, ["atom.relaxed.gpu.global.min.u64"]),
    ("max", "f32", True, ["atom.relaxed.gpu.global.max.s32", "atom.relaxed.gpu.global.min.u32"]),
    ("min", "f64", False, ["red.relaxed.gpu.global.min.s64", "red.relaxed.gpu.global.max.u64"]),
    ("max", "f16", False, ["atom.relaxed.gpu.global.cas.b16"]),
    ("xor", "i64", False, ["red.relaxed.gpu.global.xor.b64"]),
    ("xchg", "f32", False, ["atom.relaxed.gpu.global.exch.b32"]),
    ("cas", "i16", True, ["atom.relaxed.gpu.global.cas.b16"]),
    ("cas", "f64", False, ["atom.relaxed.gpu.global.cas.b64"])])
def test_one_instruction_each(kind, dtype, used, instructions) -> None:
    """`red` where nobody asks for the old value and there is one; floats by their sign."""
    lines = ptx_of(kind, dtype, used).splitlines()
    assert len(lines) == len(instructions)
    for line, instruction in zip(lines, instructions):
        assert instruction + " " in line.replace("\t", " ")


def test_bf16_is_added_by_compare_and_swap_before_sm_90() -> None:
    assert "cas.b16" in ptx_of("add", "bf16", False, target="sm_80")
    assert "release" in ptx_of("add", "i32", False, sem="release")


@tilec.jit
def rows(x, v, n, stride, R: tl.constexpr, C: tl.constexpr):
    """Each program adds some columns of v to the same rows of x, the first n rows."""
    i = tl.arange(0, R)[:, None]
    at = i * stride + tl.arange(0, C)[None, :]
    tl.atomic_add(x + at, tl.load(v + at), mask=i < n)


@pytest.mark.parametrize(("dtype", "target", "instruction"), [
    ("f32", "sm_90a", "add.v4.f32"), ("f16", "sm_90a", "add.noftz.v2.f16x2"),
    ("bf16", "sm_90a", "add.noftz.v2.bf16x2"), ("f16", "sm_80", "add.noftz.f16x2"),
    ("f16", "sm_75", "add.noftz.f16x2"), ("f32", "sm_80", "add.f32"), ("f64", "sm_90a", "add.f64"),
    ("i32", "sm_90a", "add.u32")])
def test_neighbours_are_added_by_one_instruction(dtype, target, instruction, rng) -> None:
    """The PTX says so, and every level adds each element once, and no other."""
    x0, v = (random(rng, dtype, 20 * 48, True).reshape(20, 48) for _ in range(2))
    if dtype == "i32":
        x0, v = x0 % 99, v % 99
    want = x0.copy()
    want[:11, :32] += 3 * v[:11, :32]
    made = rows.warmup(x0, v, 11, 48, R=16, C=32, grid=(3,), target=target)
    for level in LEVELS:
        x = x0.copy()
        made.run([x, v, 11, 48], 3, level=level, seed=int(rng.integers(100)))
        equal(x.reshape(-1), want.reshape(-1), level)
    assert f"red.relaxed.gpu.global.{instruction} " in made.asm["ptx"]


# -- what is refused ------------------------------------------------------------------------------

@tilec.jit
def refused(x, f, h, c: tl.const, n, DO: tl.constexpr):
    if DO == "bitwise":
        tl.atomic_and(f, 1)
    if DO == "narrow":
        tl.atomic_max(h + tl.arange(0, 8), 3)
    if DO == "exchange":
        tl.atomic_xchg(h, 1)
    if DO == "bytes":
        tl.atomic_cas(x.to(tl.pointer_type(tl.int8)), 0, 1)
    if DO == "const":
        tl.atomic_min(c, 1)
    if DO == "number":
        n.atomic_add(1)
    if DO == "tile":
        tl.atomic_cas(x, tl.arange(0, 8), 1)
    if DO == "shape":
        tl.atomic_or(x + tl.arange(0, 8), tl.arange(0, 4))
    if DO == "sem":
        tl.atomic_xor(x, 1, sem="seq_cst")
    if DO == "scope":
        tl.atomic_xchg(x, 1, scope="cluster")
    if DO == "mask":
        tl.atomic_max(x, 1, mask=n)
    if DO == "no mask":
        tl.atomic_cas(x, 0, 1, mask=n > 0)
    if DO == "value":
        tl.atomic_cas(x, 0)
    if DO == "run time":
        tl.atomic_add(x, 1, sem=n)


@pytest.mark.parametrize(("do", "message", "advice"), [
    ("bitwise", "tl.atomic_and: there is no atomic and of fp32", "int32, uint32, int64 or uint64"),
    ("narrow", "tl.atomic_max: there is no atomic max of int16", "use int32, uint32"),
    ("exchange", "tl.atomic_xchg: there is no atomic xchg of int16", "fp32 or fp64"),
    ("bytes", "tl.atomic_cas: there is no atomic cas of int8", "use int16, uint16"),
    ("const", "tl.atomic_min: cannot write through", "tl.const"),
    ("number", "tl.atomic_add: expected a pointer, found int32 scalar", "pointer argument"),
    ("tile", "tl.atomic_cas: found int32[8] tile as cmp, but the pointer is a scalar", "arange"),
    ("shape", "tl.atomic_or, pointer and value", ""),
    ("sem", "tl.atomic_xor: sem is 'seq_cst', expected one of 'acq_rel'", "default"),
    ("scope", "tl.atomic_xchg: scope is 'cluster', expected one of 'gpu'", "default"),
    ("mask", "tl.atomic_max: the mask is int32 scalar, expected int1", "mask != 0"),
    ("no mask", "tl.atomic_cas", "signature is tl.atomic_cas(pointer, cmp, val"),
    ("value", "tl.atomic_cas", "signature is tl.atomic_cas(pointer, cmp, val"),
    ("run time", "sem has to be known at compile time", "tl.constexpr")])
def test_refused(do, message, advice) -> None:
    """With the line, a caret and advice."""
    with pytest.raises(tilec.CompilationError) as caught:
        tilec.compile(refused, {"x": "*i32", "f": "*fp32", "h": "*i16", "c": "*ki32", "n": "i32"},
                      {"DO": do})
    error = caught.value
    assert message in error.message and advice in error.advice
    assert error.loc is not None and f'DO == "{do}"' in lines_of(error.loc.line - 2)
    assert "^" in str(error)


def lines_of(number: int) -> str:
    with open(__file__, encoding="utf-8") as text:
        return text.read().splitlines()[number]


@pytest.mark.parametrize(("op", "message"), [
    ('tile.atomic_rmw(%p, %v) {kind = "nand"} : i32', "`kind` is 'nand', expected one of"),
    ('tile.atomic_rmw(%p, %v) : i32', "kind"),
    ('tile.atomic_rmw(%f, %y) {kind = "xor"} : f32', "no atomic xor for f32"),
    ('tile.atomic_rmw(%p, %y) {kind = "max"} : i32', "value is f32, expected i32"),
    ('tile.atomic_cas(%p, %y, %v) : i32', "value is f32, expected i32"),
    ('tile.atomic_cas(%b, %w, %w) : i8', "no atomic cas for i8"),
    ('tile.atomic_rmw(%c, %v) {kind = "add"} : i32', "cannot store through")])
def test_wrong_ir(op, message) -> None:
    with pytest.raises(IRError) as caught:
        parse("module {\n  func @k(%p: ptr<i32>, %f: ptr<f32>, %b: ptr<i8>, %c: ptr<i32, const>, "
              f"%v: i32, %y: f32, %w: i8) {{\n    %o = {op}\n    func.return()\n  }}\n}}\n")
    assert message in str(caught.value)


# -- what is wrong at run time --------------------------------------------------------------------

@tilec.jit
def poison(x, o, n, DO: tl.constexpr):
    at = tl.arange(0, 8)
    some = tl.load(o + at, mask=at < n)
    if DO == "value":
        tl.atomic_max(x + at, some)
    if DO == "cmp":
        tl.atomic_cas(x + at, some, 1)
    if DO == "old":
        tl.store(o + at, tl.atomic_or(x + at, 1, mask=at < n))
    if DO == "outside":
        tl.atomic_xchg(x + at + n, 1)
    if DO == "cas outside":
        tl.atomic_cas(x + at - 1, 1, 1)


@pytest.mark.parametrize(("do", "message"), [
    ("value", r"updates x, but the value is poison in 3 elements: it comes from the load at"),
    ("cmp", r"updates x, but the value is poison in 3 elements: it comes from the load at"),
    ("old", r"writes o, but the value is poison in 3 elements: it comes from masked-off lanes of "
            r"the atomic at"),
    ("outside", r"updates 5 elements past x \(8 elements\)"),
    ("cas outside", r"updates 1 element before x \(8 elements\)")])
def test_wrong_at_run_time(do, message) -> None:
    x, o = np.zeros(8, np.int32), np.zeros(8, np.int32)
    made = poison.warmup(x, o, 5, DO=do, grid=(1,))
    with pytest.raises(tilec.InterpreterError, match=message) as caught:
        made.run([x, o, 5], 1, level="tile")
    assert caught.value.loc is not None and f'DO == "{do}"' in lines_of(caught.value.loc.line - 2)


def test_a_read_only_array() -> None:
    x = np.zeros(8, np.int32)
    x.flags.writeable = False
    made = poison.warmup(np.zeros(8, np.int32), x, 3, DO="outside", grid=(1,))
    with pytest.raises(tilec.InterpreterError, match="updates x, a read-only array"):
        made.run([x, np.zeros(8, np.int32), 0], 1, level="tile")
