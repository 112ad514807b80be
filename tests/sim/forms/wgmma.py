"""Forms of wgmma: all types, both majors, every swizzle, A in shared memory and in registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tests.sim.forms.base import BITS, Form, Match, poison, seed_of, special
from tests.sim.forms.matrix import KINDS, operand
from tests.sim.forms.tensor import BLOCK, BOTH, transfer

_MODE = {0: 0, 128: 1, 64: 2, 32: 3}


class Layout(NamedTuple):
    """How an operand of `rows` along M or N lies in shared memory: 32 bytes of k are used."""

    swizzle: int
    mn_major: bool = False
    step: int = 0  # bytes of k before those that are used, within a swizzled row
    padding: int = 0  # bytes between groups of eight rows
    base: int = 0  # rows before the first, in the swizzle's pattern

    def placed(self, rows: int, size: int) -> tuple[int, int, int]:
        """Leading and stride byte offsets, and the bytes that the operand takes.

        facts of PTX ISA, "Shared Memory Matrix Layout": K-major rows are as long as the swizzle;
        MN-major ones have that many bytes of M or N, for eight k each.
        """
        if self.swizzle and not self.mn_major:
            stride = 8 * self.swizzle + self.padding
            return 16, stride, rows // 8 * stride + 1024
        if self.swizzle:
            panels = -(-rows * size // self.swizzle)
            return 16 * self.swizzle, 8 * self.swizzle, panels * 16 * self.swizzle
        if self.mn_major:
            return 128, 256, -(-rows * size // 16) * 256
        return rows * 16, 128, rows * 32

    def descriptor(self, rows: int, size: int) -> int:
        """All but the start address."""
        leading, stride, _ = self.placed(rows, size)
        return (leading >> 4 << 16 | stride >> 4 << 32 | self.base << 49
                | _MODE[self.swizzle] << 62)


class Product(NamedTuple):
    """One wgmma, d (+)= a * b."""

    n: int
    d: str
    a: str
    b: str
    left: Layout | None = Layout(128)  # None: in registers
    right: Layout = Layout(128)
    way: str = ""
    scale: str = "1"  # of d
    signs: tuple[int, int] = (1, 1)
    saturates: bool = False

    @property
    def name(self) -> str:
        def shown(layout: Layout | None) -> str:
            if layout is None:
                return "registers"
            parts = [f"{'mn' if layout.mn_major else 'k'}{layout.swizzle}"]
            parts += [f"{what} {value}" for what, value in (
                ("from", layout.step), ("padding", layout.padding), ("base", layout.base)) if value]
            return " ".join(parts)

        rest = "" if self.signs == (1, 1) else f" signs {self.signs}"
        rest += "" if self.scale == "1" else f" scale {self.scale}"
        rest += f" {self.way}" if self.way else ""
        return f"{self.instruction} {shown(self.left)} by {shown(self.right)}{rest}"

    @property
    def instruction(self) -> str:
        k = 32 // np.dtype(KINDS[self.a]).itemsize
        sat = ".satfinite" if self.saturates else ""
        return (f"wgmma.mma_async.sync.aligned.m64n{self.n}k{k}.{self.d}.{self.a}.{self.b}{sat}")

    def form(self, match: Match = BITS) -> Form:
        size = np.dtype(KINDS[self.a]).itemsize
        a_bytes = self.left.placed(64, size)[2] if self.left else 0
        a_bytes = -(-a_bytes // 1024) * 1024
        total = -(-(a_bytes + self.right.placed(self.n, size)[2]) // 512) * 512
        registers = self.n // (4 if self.d == "f16" else 2)
        names = [f"%f{i}" if self.d == "f32" else f"%r{20 + i}" for i in range(registers)]
        lines = [f""".shared .align 1024 .b8 tile[{total}]; .reg .b32 %tile, %at, %word;
            .reg .b64 %there; mov.u32 %tile, tile; setp.eq.u32 %p3, 0, 0; setp.ne.u32 %p4, 0, 0;
            {transfer("fill", total, "%I0")} {BOTH}"""]
        lines += [f"ld.global.b32 {name}, [%i1+{4 * i}];" for i, name in enumerate(names)]
        operands = ["{" + ", ".join(names) + "}"]
        rng = np.random.default_rng(seed_of(self.name))
        half = a_bytes // size
        way = self.way or ("small" if self.n > 24 else "whole")  # which keeps the recording small
        image = np.concatenate([operand(self.a, way, half, rng), operand(
            self.b, way, total // size - half, rng)])
        added = "small" if self.d == "s32" and not self.saturates else way
        inputs = [image, operand(self.d, added, 64 * self.n, rng)]
        if self.left is None:
            lines += [f"ld.global.b32 %r{4 + i}, [%i2+{4 * i}];" for i in range(4)]
            operands.append("{%r4, %r5, %r6, %r7}")
            inputs.append(operand(self.a, way, 64 * 32 // size, rng))
        else:
            lines.append(self.describe("%w1", self.left, 64, 0))
            operands.append("%w1")
        lines.append(self.describe("%w2", self.right, self.n, a_bytes))
        operands += ["%w2", {"1": "%p3", "0": "%p4"}.get(self.scale, self.scale[-1])]
        if self.d != "s32":
            operands += [str(sign) for sign in self.signs]
        if size == 2:
            operands += [str(int(layout.mn_major)) for layout in (self.left, self.right)
                         if layout is not None]
        lines.append(f"wgmma.fence.sync.aligned; {self.instruction} {', '.join(operands)};"
                     "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;")
        lines += [f"st.global.b32 [%o0+{4 * i}], {name};" for i, name in enumerate(names)]
        return special(self.name, "\n".join(lines), [poison("i32", registers * BLOCK)], inputs,
                       BLOCK, match=[match])

    def describe(self, register: str, layout: Layout, rows: int, offset: int) -> str:
        size = np.dtype(KINDS[self.a]).itemsize
        start = offset + layout.step + layout.base * 128
        return f"""add.u32 %r1, %tile, {start}; and.b32 %r1, %r1, 0x3ffff; shr.b32 %r1, %r1, 4;
            cvt.u64.u32 {register}, %r1;
            or.b64 {register}, {register}, {layout.descriptor(rows, size):#x};"""


def wholes() -> Iterator[Product]:
    for n in (8, 16, 24, 40, 64, 104, 160, 176, 192, 256):
        yield Product(n, "f32", "bf16", "bf16", Layout(128, step=32), Layout(128, step=64))
    for swizzle in _MODE:
        for a_major in (False, True):
            for b_major in (False, True):
                yield Product(24, "f32", "f16", "f16", Layout(swizzle, a_major),
                              Layout(swizzle, b_major))
        for ty, d in (("tf32", "f32"), ("e4m3", "f32"), ("u8", "s32"), ("e5m2", "f16")):
            yield Product(16, d, ty, ty, Layout(swizzle), Layout(swizzle))
    yield Product(24, "f16", "f16", "f16", Layout(64), Layout(128, True))
    yield Product(24, "f32", "bf16", "bf16", Layout(32, True), Layout(0))
    for n in (160, 176, 192, 256):
        yield Product(n, "f32", "bf16", "bf16", Layout(128), Layout(128, True))
    yield Product(176, "f16", "f16", "f16", Layout(64, True), Layout(64, True))
    yield Product(192, "f32", "tf32", "tf32", Layout(128, step=96), Layout(128, step=96))
    yield Product(40, "f32", "f16", "f16", Layout(128, padding=1024), Layout(64, padding=512))
    yield Product(16, "f32", "f16", "f16", Layout(128, base=4), Layout(128, base=2))
    for d in ("f32", "f16"):
        for a in ("e4m3", "e5m2"):
            for b in ("e4m3", "e5m2"):
                yield Product(24, d, a, b, Layout(128, step=32), Layout(64, step=32))
    yield Product(160, "f32", "e4m3", "e4m3")
    for a in ("s8", "u8"):
        for b in ("s8", "u8"):
            yield Product(24, "s32", a, b)
            yield Product(8, "s32", a, b, saturates=True)
    for n in (160, 176, 192):
        yield Product(n, "s32", "s8", "s8")
    for ty in ("f16", "bf16"):
        for right in (Layout(128), Layout(128, True), Layout(0, True)):
            yield Product(48, "f32", ty, ty, None, right)
    for ty, d in (("tf32", "f32"), ("e4m3", "f32"), ("e5m2", "f32"), ("s8", "s32"), ("u8", "s32"),
                  ("f16", "f16"), ("e4m3", "f16")):
        yield Product(16, d, ty, ty, None)
    yield Product(192, "f32", "bf16", "bf16", None, Layout(128, True))
    for signs in ((-1, 1), (1, -1), (-1, -1)):
        yield Product(8, "f32", "f16", "f16", signs=signs)
    yield Product(8, "f32", "e4m3", "e4m3", signs=(-1, 1))
    for scale in ("0", "literal 0", "literal 1"):
        yield Product(8, "f32", "bf16", "bf16", scale=scale)


def forms() -> Iterator[Form]:
    for product in wholes():
        yield product.form()
    # The units add with fewer bits than f32 has, of fp8 with about 14.
    for ty, d, bits in (("f16", "f32", 20), ("f16", "f16", 9), ("bf16", "f32", 20),
                        ("tf32", "f32", 20), ("e4m3", "f32", 11), ("e5m2", "f32", 11),
                        ("e5m2", "f16", 8)):
        yield Product(8, d, ty, ty, way="positive").form(Match(d, relative=2.0**-bits))
    for ty in ("f16", "bf16", "tf32"):
        yield Product(16, "f32", ty, ty, way="special").form(Match("f32"))
    yield Product(16, "f32", "tf32", "tf32", way="low bits set").form()
    yield chain()


def chain() -> Form:
    """Four steps of k along one row of the swizzle, in groups that are waited for one by one."""
    layout, n = Layout(128), 64
    product = Product(n, "f32", "bf16", "bf16", layout, layout)
    names = ", ".join(f"%f{i}" for i in range(n // 2))
    rng = np.random.default_rng(seed_of("chain"))
    total = (64 + n) * 128
    lines = [f""".shared .align 1024 .b8 tile[{total}]; .reg .b32 %tile, %at, %word;
        .reg .b64 %there; mov.u32 %tile, tile; {transfer("fill", total, "%I0")} {BOTH}
        {product.describe("%w1", layout, 64, 0)} {product.describe("%w2", layout, n, 64 * 128)}
        wgmma.fence.sync.aligned;"""]
    for step in range(4):
        lines.append(f"{product.instruction} {{{names}}}, %w1, %w2, {min(step, 1)}, 1, 1, 0, 0;"
                     "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1;"
                     "add.u64 %w1, %w1, 2; add.u64 %w2, %w2, 2;")
    lines.append("wgmma.wait_group.sync.aligned 0;")
    lines += [f"st.global.b32 [%o0+{4 * i}], %f{i};" for i in range(n // 2)]
    return special("wgmma chain of four groups", "\n".join(lines), [poison("i32", n // 2 * BLOCK)],
                   [operand("bf16", "small", total // 2, rng)], BLOCK)
