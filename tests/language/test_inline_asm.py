"""tl.inline_asm_elementwise: dtypes, packing, several results and refusals, at every level."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tilec.codegen import cubin
from tilec.errors import IRError
from tilec.ir.parser import parse
from tilec.ir.printer import print_module

LEVELS = ("tile", "gpu", "lowered", "ptx")
N = 300


@tilec.jit
def one(x, y, o, n, ASM: tl.constexpr, CONSTRAINTS: tl.constexpr, TO: tl.constexpr,
        PACK: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    a, b = tl.load(x + i, i < n, other=0), tl.load(y + i, i < n, other=0)
    found = tl.inline_asm_elementwise(ASM, CONSTRAINTS, [a, b], TO, is_pure=True, pack=PACK)
    tl.store(o + i, found, i < n)


def drawn(rng: np.random.Generator, dtype: Any) -> np.ndarray:
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, N, kind, endpoint=True)
    return rng.standard_normal(N).astype(kind)


BF16 = ml_dtypes.bfloat16
HALF_ADD = "{ .reg .b32 one; mov.b32 one, 0x3c003c00; fma.rn.f16x2 $0, $1, one, $2; }"
CASES: dict[str, tuple[Any, Any, str, str, int, Any]] = {  # of, to, PTX, constraints, pack, meaning
    "i32": (np.int32, tl.int32, "add.u32 $0, $1, $2;", "=r,r,r", 1, np.add),
    "u32": (np.uint32, tl.uint32, "mul.hi.u32 $0, $1, ${2};", "=r,r,r", 1,
            lambda a, b: (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32)),
    "i64": (np.int64, tl.int64, "{ .reg .b64 t;\nnot.b64 t, $1;\n// a remark\nxor.b64 $0, t, $2; }",
            "=l,l,l", 1, lambda a, b: ~a ^ b),
    "f32": (np.float32, tl.float32, "max.f32 $0, $1, $2;", "=f, f, f", 1, np.maximum),
    "f32 as bits": (np.float32, tl.int32, "xor.b32 $0, $2, $4;\nxor.b32 $1, $3, $5;",
                    "=&r,=r,r,r,r,r", 2,
                    lambda a, b: a.view(np.int32) ^ b.view(np.int32)),
    "f64": (np.float64, tl.float64, "add.rn.f64 $0, $1, $2;", "=d,d,d", 1, np.add),
    "i16": (np.int16, tl.int16, "sub.s16 $0, $1, $2;", "=h,h,h", 1, np.subtract),
    "i16 in pairs": (np.uint16, tl.int16, "xor.b32 $0, $1, $2;", "=r,r,r", 2,
                     lambda a, b: (a ^ b).view(np.int16)),
    "i16 in a wide register": (np.uint16, tl.uint32, "mul.lo.u32 $0, $1, $2;", "=r,r,r", 1,
                               lambda a, b: a.astype(np.uint32) * b),
    "f16 in pairs": (np.float16, tl.float16, HALF_ADD, "=r,r,r", 2, np.add),
    "bf16": (BF16, tl.float32, "{ .reg .b32 a, b; shl.b32 a, $1, 16; shl.b32 b, $2, 16;"
             " add.rn.f32 $0, a, b; }", "=f,r,r", 1, lambda a, b: a.astype("f4") + b.astype("f4")),
    "i8 by four": (np.int8, tl.int8, "and.b32 $0, $1, $2;", "=r,r,r", 4, np.bitwise_and),
    "u8 by eight": (np.uint8, tl.uint8, "or.b32 $0, $2, $4; or.b32 $1, $3, $5;",
                    "=&r,=r,r,r,r,r", 8, np.bitwise_or),
    "u8 to i32": (np.uint8, tl.int32, "sub.s32 $0, $1, $2;", "=r,r,r", 1,
                  lambda a, b: a.astype(np.int32) - b),
    "f8": (ml_dtypes.float8_e4m3fn, tl.uint8, "xor.b32 $0, $1, $2;", "=r,r,r", 4,
           lambda a, b: a.view(np.uint8) ^ b.view(np.uint8)),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("block", [32, 512])
@pytest.mark.sample(24)
def test_values(case: str, level: str, block: int, rng: np.random.Generator) -> None:
    of, to, asm, constraints, pack, meaning = CASES[case]
    x, y = drawn(rng, of), drawn(rng, of)
    with np.errstate(over="ignore"):
        want = np.asarray(meaning(x, y))
    out = np.full(N + 3, 99).astype(want.dtype)
    kept = out[N:].copy()
    values = {"ASM": asm, "CONSTRAINTS": constraints, "TO": to, "PACK": pack, "B": block}
    grid = (-(-N // block),)
    made = one.warmup(x, y, out, N, **values, grid=grid, num_warps=4, target="sm_90a")
    made.run([x, y, out, N], grid, level=level)
    np.testing.assert_array_equal(out[:N], want)
    np.testing.assert_array_equal(out[N:], kept)


@tilec.jit
def several(x, o, p, q, n, B: tl.constexpr):
    i, j = tl.arange(0, B)[:, None], tl.arange(0, 4)[None, :]
    a = tl.load(x + i, i < n, other=0)
    total, less, wide = tl.inline_asm_elementwise(
        "add.s32 $0, $3, $4; sub.s32 $1, $3, $4; mul.wide.s32 $2, $3, $4;", "=&r,=&r,=l,r,r",
        args=(a, j), dtype=(tl.int32, tl.int32, tl.int64), is_pure=True, pack=1)
    at = i * 4 + j
    tl.store(o + at, total, i < n)
    tl.store(p + at, less, i < n)
    tl.store(q + at, wide, i < n)


@pytest.mark.parametrize("level", LEVELS)
def test_several_results_of_operands_that_broadcast(level: str, rng: np.random.Generator) -> None:
    x, j = rng.integers(-2**31, 2**31, 19).astype(np.int32), np.arange(4, dtype=np.int32)
    out = [np.full((19, 4), 7, t) for t in (np.int32, np.int32, np.int64)]
    made = several.warmup(x, *out, 19, B=32, grid=(1,), target="sm_90a")
    made.run([x, *out, 19], (1,), level=level)
    want = x[:, None] + j, x[:, None] - j, x[:, None].astype(np.int64) * j
    for got, exact in zip(out, want):
        np.testing.assert_array_equal(got, exact)


@tilec.jit
def scalars(x, o, n):
    a = tl.load(x + tl.program_id(0))
    bits = tl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [a], tl.int32, True, 1)
    tl.store(o + tl.program_id(0), bits + tl.inline_asm_elementwise(
        "mov.u32 $0, 5;", "=r", [], dtype=tl.int32, is_pure=False, pack=1))


@pytest.mark.parametrize("level", LEVELS)
def test_scalars(level: str, rng: np.random.Generator) -> None:
    x, out = rng.integers(0, 2**32, 9, np.uint32), np.full(9, 7, np.int32)
    made = scalars.warmup(x, out, 9, grid=(9,), target="sm_90a")
    made.run([x, out, 9], (9,), level=level)
    np.testing.assert_array_equal(out, [bin(v).count("1") + 5 for v in x.tolist()])


@tilec.jit
def counted(o, PURE: tl.constexpr):
    for _ in range(4):
        tl.inline_asm_elementwise("mov.u32 $0, 1;", "=r", [], tl.int32, PURE, 1)
    a = tl.inline_asm_elementwise("mov.u32 $0, 1;", "=r", [], tl.int32, PURE, 1)
    b = tl.inline_asm_elementwise("mov.u32 $0, 1;", "=r", [], tl.int32, PURE, 1)
    tl.store(o, a + b)


@pytest.mark.parametrize("pure", [True, False])
def test_what_is_not_pure_is_kept(pure: bool) -> None:
    made = counted.warmup(np.zeros(1, np.int32), PURE=pure, grid=(1,), target="sm_90a")
    assert made.asm["lowered"].count("inline_asm") == (1 if pure else 3)
    assert len(re.findall(r"mov\.u32\s+%r\d+, 1;", made.asm["ptx"])) == (1 if pure else 3)


@tilec.jit
def poisoned(x, o, n):
    i = tl.arange(0, 8)
    a = tl.load(x + i, i < n)
    tl.store(o + i, tl.inline_asm_elementwise("neg.s32 $0, $1;", "=r,r", [a], tl.int32, True, 1))


def test_poison_passes() -> None:
    x, out = np.arange(8, dtype=np.int32), np.zeros(8, np.int32)
    made = poisoned.warmup(x, out, 5, grid=(1,))
    with pytest.raises(tilec.InterpreterError, match="the value is poison in 3 elements"):
        made.run([x, out, 5], (1,), level="tile")


def test_text_round_trip() -> None:
    made = one.warmup(*(np.zeros(4, np.int32),) * 3, 4, ASM='{ add.u32\t$0, $1, $2;\n// "\\"\n}',
                      CONSTRAINTS="=r,r,r", TO=tl.int32, PACK=1, B=32, grid=(1,), target="sm_90a")
    text = made.asm["tile"]
    assert print_module(parse(text)) == text and '\\n' in text


# -- what is refused ------------------------------------------------------------------------------

@tilec.jit
def refused(x, h, DO: tl.constexpr):
    if DO == "letter":
        tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,n", [x], tl.int32, True, 1)
    if DO == "tied":
        tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,0", [x], tl.int32, True, 1)
    if DO == "late output":
        tl.inline_asm_elementwise("mov.b32 $0, $1;", "r,=r", [x], tl.int32, True, 1)
    if DO == "inputs":
        tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r,r", [x], tl.int32, True, 1)
    if DO == "outputs":
        tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], tl.int32, True, 2)
    if DO == "width":
        tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,h", [x], tl.int32, True, 1)
    if DO == "float":
        tl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [h], tl.float32, True, 1)
    if DO == "reference":
        tl.inline_asm_elementwise("mov.b32 $0, $2;", "=r,r", [x], tl.int32, True, 1)
    if DO == "dollar":
        tl.inline_asm_elementwise("mov.b32 $0, $x;", "=r,r", [x], tl.int32, True, 1)
    if DO == "bool":
        tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x > 0], tl.int32, True, 1)
    if DO == "pack":
        tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], tl.int32, True, 0)
    if DO == "half a register":
        tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x.to(tl.int8)], tl.int8, True, 6)
    if DO == "half a result":
        tl.inline_asm_elementwise("", "=r,=r,r,r,r", [x], tl.float16, True, 3)
    if DO == "text":
        tl.inline_asm_elementwise(x, "=r,r", [x], tl.int32, True, 1)
    if DO == "dtype":
        tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], 5, True, 1)
    if DO == "shapes":
        tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r,r", [tl.arange(0, 4), tl.arange(0, 8)],
                                  tl.int32, True, 1)


@pytest.mark.parametrize(("do", "message"), [
    ("letter", '`n` in the constraints "=r,n" is not understood'),
    ("tied", '`0` in the constraints "=r,0" is not understood'),
    ("late output", '`=r` in the constraints "r,=r" is not understood'),
    ("inputs", 'its operands take 1 registers, the constraints "=r,r,r" have 2'),
    ("outputs", 'its results take 2 registers, the constraints "=r,r" have 1'),
    ("width", "constraint `h` is a register of 16 bits, one of its operands has 32"),
    ("float", "constraint `f` is a register of 32 bits, one of its operands has 16"),
    ("reference", "`$2` in its text names none of its 2 operands"),
    ("dollar", "`$` in its text names none of its 2 operands"),
    ("bool", "one of its operands is i1"), ("pack", "pack is the number 0, expected an integer"),
    ("half a register", "pack is 6, no multiple of the elements that share a register"),
    ("half a result", "pack is 3, no multiple"),
    ("text", "asm of tl.inline_asm_elementwise has to be known at compile time"),
    ("dtype", "the dtype of tl.inline_asm_elementwise has to be a dtype, found the number 5"),
    ("shapes", "shapes [4] and [8] do not broadcast")])
def test_refused(do: str, message: str) -> None:
    with pytest.raises(tilec.CompilationError) as caught:
        tilec.compile(refused, {"x": "i32", "h": "fp16"}, {"DO": do})
    assert message in caught.value.message and caught.value.advice
    assert "^" in str(caught.value) and caught.value.loc is not None


@pytest.mark.parametrize(("op", "message"), [
    ('tile.inline_asm(%x) {asm = "mov.b32 $0, $1;", constraints = "=r,q"} : i32', "`q`"),
    ('tile.inline_asm(%x) {asm = "mov.b32 $0, $7;", constraints = "=r,r"} : i32', "`$7`"),
    ('tile.inline_asm(%x) {asm = "mov.b32 $0, $1;", constraints = "=r,r"} : tensor<4xi32>',
     "expected one shape and layout"),
    ('tile.inline_asm(%x) {asm = "", constraints = "r"}', "needs the types of its results")])
def test_wrong_ir(op: str, message: str) -> None:
    with pytest.raises(IRError) as caught:
        parse(f"module {{ func @k(%x: i32) {{ %o = {op}\n func.return() }} }}")
    assert message in str(caught.value)


@tilec.jit
def unknown(x, o, DO: tl.constexpr):
    a = tl.load(x)
    if DO == "no such instruction":
        a = tl.inline_asm_elementwise("frobnicate.b32 $0, $1;", "=r,r", [a], tl.int32, True, 1)
    if DO == "address":
        a = tl.inline_asm_elementwise("ld.global.b32 $0, [$1];", "=r,l", [x], tl.int32, False, 1)
    if DO == "which thread":
        a = tl.inline_asm_elementwise("mov.u32 $0, %tid.x;", "=r", [], tl.int32, False, 1)
    tl.store(o, a)


@pytest.mark.skipif(not cubin.available(), reason="nvJitLink is for Linux and Windows")
@pytest.mark.cubins
def test_what_ptxas_rejects_names_its_line() -> None:
    with pytest.raises(tilec.CompilationError, match="ptxas rejects the inline PTX: .*frobnicate"
                       ) as caught:
        unknown.warmup(*(np.zeros(1, np.int32),) * 2, DO="no such instruction", grid=(1,))
    assert "frobnicate.b32 $0, $1;" in str(caught.value) and "^" in str(caught.value)


@pytest.mark.parametrize(("do", "message"), [
    ("which thread", "the inline PTX reads %tid, which only threads have"),
    ("address", "the inline PTX cannot run: (.|\n)*global")])
def test_what_the_interpreter_cannot_run(do: str, message: str) -> None:
    x, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    with pytest.raises(tilec.InterpreterError, match=message) as caught:
        unknown.warmup(x, out, DO=do, grid=(1,)).run([x, out], (1,), level="tile")
    assert caught.value.loc is not None and "^" in str(caught.value)


@tilec.jit
def clocked(o, m):
    tl.store(o + tl.program_id(0), tl.extra.cuda.globaltimer())
    tl.store(m + tl.program_id(0), tl.extra.cuda.smid())
    tl.static_assert(tl.extra.cuda.num_warps() == 2 and tl.extra.cuda.num_threads() == 64)


def test_clock_and_multiprocessor() -> None:
    made = clocked.warmup(np.zeros(2, np.int64), np.zeros(2, np.int32), grid=(2,), num_warps=2,
                          target="sm_90a")
    assert "%globaltimer" in made.asm["ptx"] and "%smid" in made.asm["ptx"]
