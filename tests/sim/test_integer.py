"""Every integer instruction form, element by element, against Python integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.sim.harness import Form, integers, run_lines, width


def signed(x: int, bits: int) -> int:
    """The two's complement value of `bits` low bits."""
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def clamp(x: int, low: int, high: int) -> int:
    return max(low, min(high, x))


def quotient(a: int, b: int) -> int:
    if b == 0:
        return -1
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def s32(f: Any) -> Any:
    return lambda *v: f(*(signed(x, 32) for x in v))


def s64(f: Any) -> Any:
    return lambda *v: f(*(signed(x, 64) for x in v))


def s16(f: Any) -> Any:
    return lambda *v: f(*(signed(x, 16) for x in v))


def both16(f: Any) -> Any:
    """f on the two halves of 32-bit values."""
    return lambda *v: (
        (f(*(x & 0xFFFF for x in v)) & 0xFFFF) | ((f(*(x >> 16 for x in v)) & 0xFFFF) << 16)
    )


def bfe(a: int, p: int, n: int, bits: int, sign: bool) -> int:
    p, n = p & 255, n & 255
    top = min(p + n - 1, bits - 1)
    fill = (a >> top) & 1 if sign and n else 0
    result = 0
    for i in range(bits):
        bit = (a >> (p + i)) & 1 if i < n and p + i < bits else fill
        result |= bit << i
    return result


def bfi(a: int, b: int, p: int, n: int, bits: int) -> int:
    p, n = p & 255, n & 255
    for i in range(min(n, bits)):
        if p + i < bits:
            b = (b & ~(1 << (p + i))) | (((a >> i) & 1) << (p + i))
    return b


def bfind(a: int, bits: int, sign: bool) -> int:
    if sign and a >> (bits - 1):
        a = ~a & ((1 << bits) - 1)
    return a.bit_length() - 1


def fns(mask: int, base: int, offset: int) -> int:
    """The ISA's loop."""
    pos, n = base, signed(offset, 32)
    if n == 0:
        return base if mask >> base & 1 else -1
    count = abs(n) - 1
    while 0 <= pos < 32:
        if mask >> pos & 1:
            if count == 0:
                return pos
            count -= 1
        pos += 1 if n > 0 else -1
    return -1


def prmt(a: int, b: int, c: int) -> int:
    data = (a | b << 32).to_bytes(8, "little")
    out = []
    for i in range(4):
        pick = (c >> 4 * i) & 15
        byte = data[pick & 7]
        out.append((0xFF if byte & 0x80 else 0) if pick & 8 else byte)
    return int.from_bytes(bytes(out), "little")


def lop3(table: int) -> Any:
    def f(a: int, b: int, c: int) -> int:
        result = 0
        for i in range(32):
            index = ((a >> i) & 1) * 4 + ((b >> i) & 1) * 2 + ((c >> i) & 1)
            result |= ((table >> index) & 1) << i
        return result

    return f


def dp4a(a: int, b: int, c: int) -> int:
    return signed(c, 32) + sum(signed(a >> 8 * i, 8) * signed(b >> 8 * i, 8) for i in range(4))


def dp2a(a: int, b: int, c: int) -> int:
    return c + sum(((a >> 16 * i) & 0xFFFF) * ((b >> (16 + 8 * i)) & 0xFF) for i in range(2))


def shl(bits: int) -> Any:
    return lambda a, n: a << n if n < bits else 0


def shr_s(bits: int) -> Any:
    return lambda a, n: signed(a, bits) >> min(n, bits)


B16, B32, B64 = ("b16",), ("b32",), ("b64",)
TWO16, TWO32, TWO64, THREE32 = B16 * 2, B32 * 2, B64 * 2, B32 * 3
SMALL = "small"  # shift amounts
FORMS = [
    Form("add.s32 %d, %a, %b;", B32, TWO32, lambda a, b: a + b),
    Form("add.u16 %d, %a, %b;", B16, TWO16, lambda a, b: a + b),
    Form("add.s64 %d, %a, %b;", B64, TWO64, lambda a, b: a + b),
    Form("add.s64 %d, %a, -16;", B64, B64, lambda a: a - 16),
    Form("add.sat.s32 %d, %a, %b;", B32, TWO32,
         s32(lambda a, b: clamp(a + b, -(2**31), 2**31 - 1))),
    Form("add.u16x2 %d, %a, %b;", B32, TWO32, both16(lambda a, b: a + b)),
    Form("sub.s32 %d, %a, %b;", B32, TWO32, lambda a, b: a - b),
    Form("sub.s64 %d, %a, %b;", B64, TWO64, lambda a, b: a - b),
    Form("sub.sat.s32 %d, %a, %b;", B32, TWO32,
         s32(lambda a, b: clamp(a - b, -(2**31), 2**31 - 1))),
    Form("add.cc.u32 %d, %a, %b; addc.u32 %e, %a, %b;", B32 * 2, TWO32,
         lambda a, b: (a + b, a + b + (a + b >> 32))),
    Form("sub.cc.u64 %d, %a, %b; subc.u64 %e, %a, %b;", B64 * 2, TWO64,
         lambda a, b: (a - b, a - b - (a < b))),
    Form("mad.lo.cc.u32 %d, %a, %b, %c; madc.hi.u32 %e, %a, %b, 0;", B32 * 2, THREE32,
         lambda a, b, c: (a * b + c, (a * b + c) >> 32)),
    Form("mul.lo.s32 %d, %a, %b;", B32, TWO32, lambda a, b: a * b),
    Form("mul.lo.s16 %d, %a, %b;", B16, TWO16, lambda a, b: a * b),
    Form("mul.lo.s64 %d, %a, %b;", B64, TWO64, lambda a, b: a * b),
    Form("mul.hi.s32 %d, %a, %b;", B32, TWO32, s32(lambda a, b: a * b >> 32)),
    Form("mul.hi.u32 %d, %a, %b;", B32, TWO32, lambda a, b: a * b >> 32),
    Form("mul.hi.u16 %d, %a, %b;", B16, TWO16, lambda a, b: a * b >> 16),
    Form("mul.hi.u64 %d, %a, %b;", B64, TWO64, lambda a, b: a * b >> 64),
    Form("mul.hi.s64 %d, %a, %b;", B64, TWO64, s64(lambda a, b: a * b >> 64)),
    Form("mul.wide.s32 %d, %a, %b;", B64, TWO32, s32(lambda a, b: a * b)),
    Form("mul.wide.u32 %d, %a, 12;", B64, B32, lambda a: a * 12),
    Form("mul.wide.s16 %d, %a, %b;", B32, TWO16, s16(lambda a, b: a * b)),
    Form("mul24.lo.u32 %d, %a, %b;", B32, TWO32,
         lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
    Form("mul24.hi.s32 %d, %a, %b;", B32, TWO32,
         lambda a, b: signed(a, 24) * signed(b, 24) >> 16),
    Form("mad24.lo.s32 %d, %a, %b, %c;", B32, THREE32,
         lambda a, b, c: signed(a, 24) * signed(b, 24) + c),
    Form("mad.lo.s32 %d, %a, %b, %c;", B32, THREE32, lambda a, b, c: a * b + c),
    Form("mad.wide.u32 %d, %a, %b, %c;", B64, ("b32", "b32", "b64"), lambda a, b, c: a * b + c),
    Form("mad.hi.sat.s32 %d, %a, %b, %c;", B32, THREE32,
         s32(lambda a, b, c: clamp((a * b >> 32) + c, -(2**31), 2**31 - 1))),
    Form("div.s32 %d, %a, %b;", B32, TWO32, s32(quotient)),
    Form("div.u32 %d, %a, %b;", B32, TWO32, quotient),
    Form("div.s64 %d, %a, %b;", B64, TWO64, s64(quotient)),
    Form("div.u16 %d, %a, %b;", B16, TWO16, quotient),
    Form("rem.s32 %d, %a, %b;", B32, TWO32, s32(lambda a, b: a - b * quotient(a, b) if b else -1)),
    Form("rem.u64 %d, %a, %b;", B64, TWO64, lambda a, b: a % b if b else -1),
    Form("rem.s16 %d, %a, %b;", B16, TWO16, s16(lambda a, b: a - b * quotient(a, b) if b else -1)),
    Form("abs.s32 %d, %a;", B32, B32, s32(abs)),
    Form("abs.s64 %d, %a;", B64, B64, s64(abs)),
    Form("neg.s32 %d, %a;", B32, B32, lambda a: -a),
    Form("neg.s16 %d, %a;", B16, B16, lambda a: -a),
    Form("min.s32 %d, %a, %b;", B32, TWO32, s32(min)),
    Form("min.u16 %d, %a, %b;", B16, TWO16, min),
    Form("max.u64 %d, %a, %b;", B64, TWO64, max),
    Form("max.s64 %d, %a, %b;", B64, TWO64, s64(max)),
    Form("max.s16x2 %d, %a, %b;", B32, TWO32, both16(s16(max))),
    Form("min.relu.s32 %d, %a, %b;", B32, TWO32, s32(lambda a, b: max(0, min(a, b)))),
    Form("sad.s32 %d, %a, %b, %c;", B32, THREE32,
         lambda a, b, c: abs(signed(a, 32) - signed(b, 32)) + c),
    Form("dp4a.s32.s32 %d, %a, %b, %c;", B32, THREE32, dp4a),
    Form("dp2a.hi.u32.u32 %d, %a, %b, %c;", B32, THREE32, dp2a),
    Form("and.b32 %d, %a, %b;", B32, TWO32, lambda a, b: a & b),
    Form("and.b64 %d, %a, 0xFF00;", B64, B64, lambda a: a & 0xFF00),
    Form("and.pred %d, %a, %b;", ("pred",), ("pred",) * 2, lambda a, b: a & b),
    Form("or.b16 %d, %a, %b;", B16, TWO16, lambda a, b: a | b),
    Form("or.pred %d, %a, %b;", ("pred",), ("pred",) * 2, lambda a, b: a | b),
    Form("xor.b64 %d, %a, %b;", B64, TWO64, lambda a, b: a ^ b),
    Form("xor.pred %d, %a, %b;", ("pred",), ("pred",) * 2, lambda a, b: a ^ b),
    Form("not.b32 %d, %a;", B32, B32, lambda a: ~a),
    Form("not.pred %d, %a;", ("pred",), ("pred",), lambda a: 1 - a),
    Form("cnot.b32 %d, %a;", B32, B32, lambda a: int(a == 0)),
    Form("shl.b32 %d, %a, %b;", B32, TWO32, shl(32), SMALL),
    Form("shl.b16 %d, %a, %b;", B16, ("b16", "b32"), shl(16), SMALL),
    Form("shl.b64 %d, %a, %b;", B64, ("b64", "b32"), shl(64), SMALL),
    Form("shr.u32 %d, %a, %b;", B32, TWO32, lambda a, n: a >> n, SMALL),
    Form("shr.s32 %d, %a, %b;", B32, TWO32, shr_s(32), SMALL),
    Form("shr.s16 %d, %a, %b;", B16, ("b16", "b32"), shr_s(16), SMALL),
    Form("shr.s64 %d, %a, %b;", B64, ("b64", "b32"), shr_s(64), SMALL),
    Form("shr.u64 %d, %a, %b;", B64, ("b64", "b32"), lambda a, n: a >> n, SMALL),
    Form("shf.l.wrap.b32 %d, %a, %b, %c;", B32, THREE32,
         lambda a, b, n: ((b << 32 | a) << (n & 31)) >> 32, SMALL),
    Form("shf.r.clamp.b32 %d, %a, %b, %c;", B32, THREE32,
         lambda a, b, n: (b << 32 | a) >> min(n, 32), SMALL),
    Form("shf.l.clamp.b32 %d, %a, %b, %c;", B32, THREE32,
         lambda a, b, n: ((b << 32 | a) << min(n, 32)) >> 32, SMALL),
    Form("bfe.u32 %d, %a, %b, %c;", B32, THREE32, lambda a, p, n: bfe(a, p, n, 32, False), SMALL),
    Form("bfe.s32 %d, %a, %b, %c;", B32, THREE32, lambda a, p, n: bfe(a, p, n, 32, True), SMALL),
    Form("bfe.u64 %d, %a, %b, %c;", B64, ("b64", "b32", "b32"),
         lambda a, p, n: bfe(a, p, n, 64, False), SMALL),
    Form("bfe.s64 %d, %a, %b, %c;", B64, ("b64", "b32", "b32"),
         lambda a, p, n: bfe(a, p, n, 64, True), SMALL),
    Form("bfi.b32 %d, %a, %b, %c, %g;", B32, B32 * 4,
         lambda a, b, p, n: bfi(a, b, p, n, 32), SMALL),
    Form("bfi.b64 %d, %a, %b, %c, %g;", B64, ("b64", "b64", "b32", "b32"),
         lambda a, b, p, n: bfi(a, b, p, n, 64), SMALL),
    Form("bmsk.clamp.b32 %d, %a, %b;", B32, TWO32,
         lambda p, n: ((1 << min(n, 32)) - 1) << p if p < 32 else 0, SMALL),
    Form("szext.clamp.s32 %d, %a, %b;", B32, TWO32,
         lambda a, n: signed(a, min(n, 32)) if n else 0, SMALL),
    Form("szext.wrap.u32 %d, %a, %b;", B32, TWO32, lambda a, n: a & ((1 << (n & 31)) - 1), SMALL),
    Form("popc.b32 %d, %a;", B32, B32, int.bit_count),
    Form("popc.b64 %d, %a;", B32, B64, int.bit_count),
    Form("clz.b32 %d, %a;", B32, B32, lambda a: 32 - a.bit_length()),
    Form("clz.b64 %d, %a;", B32, B64, lambda a: 64 - a.bit_length()),
    Form("bfind.u32 %d, %a;", B32, B32, lambda a: bfind(a, 32, False)),
    Form("bfind.s64 %d, %a;", B32, B64, lambda a: bfind(a, 64, True)),
    Form("bfind.shiftamt.u32 %d, %a;", B32, B32, lambda a: 31 - bfind(a, 32, False) if a else -1),
    Form("rem.u32 %b, %b, 32; rem.s32 %c, %c, 5; fns.b32 %d, %a, %b, %c;", B32, THREE32,
         lambda a, b, c: fns(a, b % 32, s32(lambda x: x - 5 * quotient(x, 5))(c))),
    Form("brev.b32 %d, %a;", B32, B32, lambda a: int(f"{a:032b}"[::-1], 2)),
    Form("brev.b64 %d, %a;", B64, B64, lambda a: int(f"{a:064b}"[::-1], 2)),
    Form("prmt.b32 %d, %a, %b, %c;", B32, THREE32, prmt),
    Form("prmt.b32 %d, %a, %b, 0x7632;", B32, TWO32, lambda a, b: prmt(a, b, 0x7632)),
    Form("prmt.b32.rc16 %d, %a, %b, 1;", B32, TWO32, lambda a, b: prmt(a, b, 0x3232)),
    Form("prmt.b32.b4e %d, %a, %b, 2;", B32, TWO32, lambda a, b: prmt(a, b, 0x7012)),
    Form("lop3.b32 %d, %a, %b, %c, 0xE8;", B32, THREE32, lop3(0xE8)),
    Form("lop3.b32 %d, %a, %b, %c, 0x1D;", B32, THREE32, lop3(0x1D)),
    Form("lop3.or.b32 %d|%e, %a, %b, %c, 0x80, 0;", ("b32", "pred"), THREE32,
         lambda a, b, c: (a & b & c, int(a & b & c != 0))),
    Form("selp.b32 %d, %a, %b, %c;", B32, ("b32", "b32", "pred"), lambda a, b, c: a if c else b),
    Form("selp.b16 %d, %a, -1, %b;", B16, ("b16", "pred"), lambda a, c: a if c else -1),
    Form("slct.u32.s32 %d, %a, %b, %c;", B32, THREE32,
         lambda a, b, c: a if signed(c, 32) >= 0 else b),
    Form("mov.b64 %d, {%a, %b};", B64, TWO32, lambda a, b: a | b << 32),
    Form("mov.b32 {%d, %e}, %a;", B16 * 2, B32, lambda a: (a & 0xFFFF, a >> 16)),
    Form("mov.b64 {_, %d}, %a;", B32, B64, lambda a: a >> 32),
    Form("mov.b32 %d, 0f3F800000; @%a mov.b32 %d, -7;", B32, ("pred",),
         lambda a: -7 if a else 0x3F800000),
    Form("@!%a add.s32 %b, %b, 1; mov.b32 %d, %b;", B32, ("pred", "b32"),
         lambda a, b: b if a else b + 1),
    Form("mov.b64 %d, 0x123456789ABCDEF0; not.b64 %d, %d;", B64, B64,
         lambda a: ~0x123456789ABCDEF0),
]  # fmt: skip


def sources(form: Form) -> list[np.ndarray[Any, Any]]:
    """Input bits of a form; with SMALL the last sources are shift amounts around the width."""
    arrays = []
    for i, ty in enumerate(form.ins):
        values = integers(width(ty), 100 + i)
        if ty == "pred":
            values = values & np.uint8(1)
        if form.data == SMALL and ty == "b32" and (i or "bmsk" in form.text):
            values = integers(32, 200 + i) % np.uint32(70)
        arrays.append(values)
    return arrays


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.text)
def test_form(form: Form) -> None:
    arrays = sources(form)
    got = run_lines(form.text, form.outs, list(zip(form.ins, arrays, strict=True)))
    for lane in range(len(arrays[0])):
        values = [int(a[lane]) for a in arrays]
        expected = form.reference(*values)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for result, ty, want in zip(got, form.outs, expected, strict=True):
            assert int(result[lane]) == want & ((1 << width(ty)) - 1), [hex(v) for v in values]
