"""wgmma: asynchronous products of a warpgroup (see sim/wgmma.py).

Fragments are PTX's (PTX ISA, "Register Fragments and Shared Memory Matrix Layouts"): each warp
holds 16 of the 64 rows, laid out as in mma.sync.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tilec.sim import floats
from tilec.sim.decode import Decoder
from tilec.sim.errors import Fault, Unsupported
from tilec.sim.instructions.common import parts
from tilec.sim.instructions.matrix import along_k
from tilec.sim.machine import Array, Code, Mask
from tilec.sim.ptx import TYPE_BYTES, Instr
from tilec.sim.rules import rule
from tilec.sim.wgmma import READS, Product, locate

_FORM = re.compile(r"mma_async\.sync\.aligned\.m64n(\d+)k(\d+)(\.satfinite)?\.(\w+)\.(\w+)\.(\w+)"
                   r"(\.satfinite)?")
_EIGHTS = ("e4m3", "e5m2")
_RESULTS = {"f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "e4m3": ("f16", "f32"),
            "e5m2": ("f16", "f32"), "s8": ("s32",), "u8": ("s32",)}
_MIXED = (set(_EIGHTS), {"s8", "u8"})
_CONTROLS = {"fence": "fence.sync.aligned", "commit_group": "commit_group.sync.aligned",
             "wait_group": "wait_group.sync.aligned"}


@rule("wgmma")
def wgmma(decoder: Decoder, instr: Instr) -> Code:
    """wgmma.mma_async, .fence, .commit_group and .wait_group N."""
    products, text = decoder.products, ".".join(instr.mods)
    if instr.mods[0] in _CONTROLS and text == _CONTROLS[instr.mods[0]]:
        step: Callable[[Mask], None] = products.fence
        if instr.mods[0] == "commit_group":
            step = products.commit
        elif instr.mods[0] == "wait_group":
            step = partial(products.wait, newest=instr.operands[0].value)
        return decoder.synced(decoder.constant(0xFFFFFFFF, np.uint32), step)
    return _multiply(decoder, instr)


class _Form:
    """Shape, types and immediate operands of a wgmma.mma_async."""

    def __init__(self, instr: Instr) -> None:
        text = ".".join(instr.mods)
        found = _FORM.fullmatch(text)
        if found is None:
            raise Unsupported(f"wgmma.{text}")
        self.n, self.k = int(found[1]), int(found[2])
        self.d, self.a, self.b = found[4], found[5], found[6]
        self.saturates = "satfinite" in instr.mods
        self.width = TYPE_BYTES.get(self.a, 0)
        integer = self.d == "s32"
        step = 16 if integer and self.n > 32 else 8
        if not (8 <= self.n <= 256 and self.n % step == 0 and self.d in _RESULTS.get(self.a, ())
                and (self.a == self.b or {self.a, self.b} in _MIXED)
                and self.k * self.width == 32 and (integer or not self.saturates)):
            raise Unsupported(f"wgmma.{text}")
        rest = [operand.value for operand in instr.operands[4:]]
        self.from_registers = instr.operands[1].kind == "vec"
        limit = 0 if integer else 2
        if self.width == 2:
            limit += 1 if self.from_registers else 2
        if len(rest) != limit or any(
                operand.kind != "imm" for operand in instr.operands[4:]):
            raise Unsupported(f"wgmma.{text} with these operands")
        self.sign = rest[0] * rest[1] if rest else 1
        if self.sign not in (1, -1) or not set(rest[2:]) <= {0, 1}:
            raise Unsupported("a wgmma with a scale other than 1 and -1, or transposed other than "
                              "0 and 1")
        transposed = [False, False, *(flag == 1 for flag in rest[2:])]
        self.a_major, self.b_major = transposed[-2], transposed[-1]
        if self.from_registers:
            self.a_major = False


def _multiply(decoder: Decoder, instr: Instr) -> Code:
    """d = a * b (+ d): the operands are fixed at the issue, their values later."""
    form = _Form(instr)
    d, a, b, scale = instr.operands[:4]
    count = form.n // (4 if form.d == "f16" else 2)
    accumulators = [decoder.dst(o, "b32" if form.d == "f16" else form.d) for o in parts(d)]
    sources = [decoder.src(o, "b32") for o in parts(a)] if form.from_registers else []
    if len(accumulators) != count or len(sources) not in (0, 4):
        raise Unsupported(f"wgmma of this shape with other than {count} accumulators")
    products = decoder.products
    used = products.number_all(parts(d)), products.number_all(parts(a) if sources else ())
    descriptors = [decoder.src(o, "b64") for o in ((b,) if sources else (b, a))]
    keeps = decoder.pred(scale) if scale.kind == "reg" else None
    always, pc = scale.value != 0, decoder.pc

    def body(mask: Mask) -> None:
        for group in np.unique(np.flatnonzero(decoder.machine.full(mask)) // 128).tolist():
            lanes = slice(128 * group, 128 * group + 128)
            bits = [int(_uniform(values, lanes, "a matrix descriptor")) for values in descriptors]
            adds = always if keeps is None else bool(_uniform(keeps(), lanes, "scale-d"))
            right = locate(decoder, bits[0], lanes.start, (form.n, form.k, form.width),
                           form.b_major)
            left = None if sources else locate(decoder, bits[1], lanes.start,
                                               (64, form.k, form.width), form.a_major)
            compute = _product(decoder, form, (accumulators, sources), lanes, left, right, adds)
            products.issue(Product(instr, group, used[0], compute, *used))
            if decoder.checks is not None:
                _touch(decoder, pc, lanes, form, left, right)

    return decoder.warpgroups(body)


def _touch(decoder: Decoder, pc: int, lanes: slice, form: _Form, left: Array | None,
           right: Array) -> None:
    """Tell the checks what a product reads; all four warps must come after who wrote it."""
    checks, warps = decoder.checks, np.arange(lanes.start, lanes.stop, 32)
    assert checks is not None
    group = lanes.start // 128
    end = checks.agents.column(READS, group), int(decoder.products.committed[lanes.start // 32])
    for table, major in ((left, form.a_major), (right, form.b_major)):
        if table is not None:
            each = 16 // form.width
            chunks = table[::each] if major else table[:, ::each]
            checks.agents.touch(pc, decoder.shared, chunks * form.width, 16, warps, end, False)


def _uniform(values: Array, lanes: slice, what: str) -> Any:
    """The value that all threads of a warpgroup have."""
    mine = values[lanes]
    different = np.flatnonzero(mine != mine[0])
    if len(different):
        raise Fault(f"{what} of a wgmma differs between the threads of a warpgroup",
                    lanes.start + int(different[0]))
    return mine[0]


def _product(decoder: Decoder, form: _Form, held: tuple[list[Array], list[Array]], lanes: slice,
             left: Array | None, right: Array, adds: bool) -> Callable[[], None]:
    """Computes the product with what shared memory and registers hold when it is called.

    Products are exact and summed with the accumulator in float64, then rounded once; the hardware
    keeps fewer bits, of fp8 about 14.
    """
    accumulators, sources = held
    memory = decoder.shared.views[form.width]

    def compute() -> None:
        if left is None:
            a = along_k([source[lanes] for source in sources], form.a, 2).reshape(64, form.k)
        else:
            a = _values(memory[left], form.a)
        total = (a * form.sign) @ _values(memory[right], form.b).T
        if adds:
            total += _matrix(np.stack([array[lanes] for array in accumulators]), form)
        if form.d == "s32":
            limits = (-(1 << 31), (1 << 31) - 1)
            whole = (np.clip(total, *limits) if form.saturates else total).astype(np.int64)
            result = whole.astype(np.int32)
        else:
            result = floats.typed(floats.narrow(total, form.d), form.d)
        for array, values in zip(accumulators, _fragments(result, form), strict=True):
            array[lanes] = values

    return compute


def _values(bits: Array, ty: str) -> Array:
    """Elements as float64."""
    if ty == "tf32":
        bits = bits & np.uint32(0xFFFFE000)
    if ty in ("s8", "u8"):
        return bits.view(np.int8 if ty == "s8" else np.uint8).astype(np.float64)
    if ty in _EIGHTS:
        return _BYTES[ty][bits]
    return floats.widen(bits, ty if ty != "tf32" else "f32").astype(np.float64)


_BYTES = {ty: floats.widen(np.arange(256, dtype=np.uint8), ty).astype(np.float64)
          for ty in _EIGHTS}


def _matrix(held: Array, form: _Form) -> Array:
    """[64, n] of accumulators [register, lane]."""
    if form.d == "f16":
        x = held.view(np.float16).reshape(-1, 2, 4, 8, 4, 2).transpose(2, 1, 3, 0, 4, 5)
    else:
        x = held.reshape(-1, 2, 2, 4, 8, 4).transpose(3, 1, 4, 0, 5, 2)
    return x.reshape(64, form.n).astype(np.float64)


def _fragments(matrix: Array, form: _Form) -> Array:
    """[register, lane] of a result [64, n]: the way back from `_matrix`."""
    x = matrix.reshape(4, 2, 8, -1, 4, 2)
    if form.d == "f16":
        x = np.ascontiguousarray(x.transpose(3, 1, 0, 2, 4, 5))
        return x.view(np.uint32).reshape(-1, 128)
    return np.ascontiguousarray(x.transpose(3, 1, 5, 0, 2, 4)).reshape(-1, 128)
