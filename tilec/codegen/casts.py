"""Lowering of conversions and bitcasts; docs/semantics.md section 5."""

from __future__ import annotations

from collections.abc import Callable

from tilec.codegen.context import CodeGen, compute
from tilec.codegen.emit import POINTER, Emit, Reg, llvm_element
from tilec.errors import CompilationError
from tilec.ir import ops
from tilec.ir.types import Pointer, Scalar, element_of, scalar_of

_FP8 = {"f8e4m3": (3, 7, 448.0), "f8e5m2": (2, 15, 57344.0)}  # mantissa bits, bias, largest


@compute(ops.Cast)
def _cast(cg: CodeGen, op: ops.Cast, x: Reg) -> Reg:
    src, dst = scalar_of(op.x.type), scalar_of(op.result.type)
    if op.rounding == "rtz" and dst.name in _FP8:
        raise CompilationError(f"there is no conversion to {dst} toward zero", op.loc,
                               "use the default rounding")
    return cast(cg, x, src, dst, op.rounding)


def cast(cg: CodeGen, x: Reg, src: Scalar, dst: Scalar, rounding: str = "rtne") -> Reg:
    """Any conversion by value, of a scalar or a vector."""
    e = cg.e
    if src == dst:
        return x
    if dst.is_bool:
        return _to_bool(cg, x, src)
    if src.is_int and dst.is_int:
        return e.resize(x, llvm_element(dst), src.is_signed)
    if src.is_int:
        return _int_to_float(cg, x, src, dst)
    if dst.is_int:
        return _float_to_int(cg, x, src, dst)
    return _float_to_float(cg, x, src, dst, rounding)


@compute(ops.Bitcast)
def _bitcast(cg: CodeGen, op: ops.Bitcast, x: Reg) -> Reg:
    src, dst = element_of(op.x.type), element_of(op.result.type)
    if isinstance(src, Pointer) and not isinstance(dst, Pointer):
        bits = cg.e.convert("ptrtoint", x, "i64")
        return cg.e.bitcast(bits, llvm_element(dst), x.n)
    if isinstance(dst, Pointer) and not isinstance(src, Pointer):
        return cg.e.convert("inttoptr", cg.e.bitcast(x, "i64", x.n), POINTER)
    return cg.e.bitcast(x, llvm_element(dst), x.n)


def _to_bool(cg: CodeGen, x: Reg, src: Scalar) -> Reg:
    e = cg.e
    if src.name in _FP8:
        return e.compare("ne", e.int_op("and", x, 0x7F), e.const(0, "i8", x.n))
    predicate = "une" if src.is_float else "ne"
    return e.compare(predicate, x, e.const(0.0 if src.is_float else 0, x.elem, x.n))


def _int_to_float(cg: CodeGen, x: Reg, src: Scalar, dst: Scalar) -> Reg:
    elem = "double" if dst.bits == 64 else "float"
    if src.bits <= 16:
        out = cg.e.convert("sitofp" if src.is_signed else "uitofp", x, elem)
    else:
        out = _opaque_int_to_float(cg.e, x, src.is_signed, elem)
    # f32 holds every integer on which f16 does not overflow.
    return out if dst.bits == 64 else from_f32(cg, out, llvm_element(dst), dst.name)


def _opaque_int_to_float(e: Emit, x: Reg, signed: bool, elem: str) -> Reg:
    """sitofp or uitofp of integers that f16 may not hold, as text: of a later fptrunc to half LLVM
    asks for the integer's significant bits, not for its size, and drops it with its infinities."""
    bits, letter = (64, "l") if x.elem == "i64" else (32, "r")
    to, register = ("f64", "d") if elem == "double" else ("f32", "f")
    text = f"cvt.rn.{to}.{'s' if signed else 'u'}{bits} $0, $1;"
    return e.per_lane(lambda v: e.asm(text, f"={register},{letter}", (v,), (elem,),
                                      effects=False)[0], x)


def _float_to_int(cg: CodeGen, x: Reg, src: Scalar, dst: Scalar) -> Reg:
    e = cg.e
    if src.bits < 32:
        x = to_f32(cg, x, src.name)
    letter = "f" if x.elem == "float" else "d"
    wide = 64 if dst.bits == 64 else 32
    kind = ("ll" if wide == 64 else "i") if dst.is_signed else ("ull" if wide == 64 else "ui")
    name = f"llvm.nvvm.{letter}2{kind}.rz"
    out = e.per_lane(lambda v: e.call(name, f"i{wide}", 0, (v,)), x)
    if letter == "d" or wide == 64:
        # The hardware maps NaN to 0 for f32 to 32 bits only.
        nan = e.compare("uno", x, e.const(0.0, x.elem, x.n))
        out = e.select(nan, e.const(0, out.elem, x.n), out)
    if dst.bits >= 32:
        return out
    if dst.is_signed:
        top = (1 << (dst.bits - 1)) - 1
        out = e.generic("smax", out, e.const(-top - 1, "i32", x.n))
        out = e.generic("smin", out, e.const(top, "i32", x.n))
    else:
        out = e.generic("umin", out, e.const((1 << dst.bits) - 1, "i32", x.n))
    return e.resize(out, f"i{dst.bits}", False)


def _float_to_float(cg: CodeGen, x: Reg, src: Scalar, dst: Scalar, rounding: str) -> Reg:
    e = cg.e
    if dst.bits == 64:
        wide = to_f32(cg, x, src.name)
        return e.convert("fpext", wide, "double")
    if src.bits == 64:
        if rounding == "rtz":
            x = e.per_lane(lambda v: e.call("llvm.nvvm.d2f.rz", "float", 0, (v,)), x)
        elif dst.bits == 16 and dst.mantissa == 10:
            return e.convert("fptrunc", x, "half")
        else:
            x = e.convert("fptrunc", x, "float")
        src_name = "f32"
    else:
        src_name = src.name
    if src_name in _FP8 and dst.name == "f16":
        return fp8_to_f16(cg, x, src_name)
    if src_name == "f16" and dst.name in _FP8 and _converts_fp8(cg):
        return _to_fp8(cg, x, dst.name)
    wide = to_f32(cg, x, src_name)
    if rounding == "rtz" and dst.bits == 16:
        return _f32_toward_zero(cg, wide, dst)
    return from_f32(cg, wide, llvm_element(dst), dst.name)


# ---- f32 and the others
def to_f32(cg: CodeGen, x: Reg, name: str = "") -> Reg:
    """A float of 32 bits or fewer as f32, exactly. `name` tells the fp8 types apart."""
    if x.elem == "bfloat":
        return bf16_to_f32(cg.e, x)
    if x.elem == "i8":
        x = fp8_to_f16(cg, x, name)
    return cg.e.convert("fpext", x, "float")


def from_f32(cg: CodeGen, x: Reg, elem: str, name: str = "") -> Reg:
    """An f32 rounded to nearest even; to fp8 saturating."""
    if elem == "bfloat":
        return f32_to_bf16(cg, x)
    if elem == "i8":
        return _to_fp8(cg, x, name)
    return cg.e.convert("fptrunc", x, elem)


def bf16_to_f32(e: Emit, x: Reg) -> Reg:
    """bf16 as f32: the bits moved up, two elements a word."""
    if x.n < 2 or x.n % 2:
        wide = e.convert("zext", e.bitcast(x, "i16", x.n), "i32")
        return e.bitcast(e.int_op("shl", wide, 16), "float", x.n)
    words = e.bitcast(x, "i32", x.n // 2 if x.n > 2 else 0)
    low, high = e.int_op("shl", words, 16), e.int_op("and", words, 0xFFFF0000)
    if not words.n:
        return e.bitcast(e.build([low, high]), "float", 2)
    order = [i for k in range(words.n) for i in (k, words.n + k)]
    return e.bitcast(e.shuffle(low, high, order), "float", x.n)


def f32_to_bf16(cg: CodeGen, x: Reg) -> Reg:
    """f32 rounded to nearest even bf16."""
    return cg.e.convert("fptrunc", x, "bfloat")


def _f32_toward_zero(cg: CodeGen, x: Reg, dst: Scalar) -> Reg:
    elem = llvm_element(dst)
    name = "ff2bf16x2.rz" if elem == "bfloat" else "ff2f16x2.rz"
    if not cg.target.has(name):
        return cg.e.per_lane(lambda v: cg.e.asm("cvt.rz.f16.f32 $0, $1;", "=h,f", (v,), (elem,),
                                                effects=False)[0], x)
    return in_pairs(cg.e, lambda low, high: cg.e.call(f"llvm.nvvm.{name}", elem, 2, (high, low)), x,
                    elem)


def in_pairs(e: Emit, f: Callable[[Reg, Reg], Reg], x: Reg, elem: str) -> Reg:
    """f(low, high) -> 2-lane register of `elem`, over the lanes of x two by two."""
    lanes = e.lane_list(x)
    out: list[Reg] = []
    for i in range(0, len(lanes), 2):
        pair = lanes[i:i + 2]
        both = f(pair[0], pair[-1])
        out.append(both if len(pair) == 2 else e.lane(both, 0))
    return e.concat(out) if len(out) > 1 else out[0]


# ---- fp8
def _converts_fp8(cg: CodeGen) -> bool:
    return cg.target.has("e4m3x2")


def fp8_to_f16(cg: CodeGen, x: Reg, name: str) -> Reg:
    """fp8 as f16, exactly."""
    e = cg.e
    if name == "f8e5m2" or not _converts_fp8(cg):
        wide = e.int_op("shl", e.convert("zext", x, "i16"), 8)
        if name == "f8e5m2":
            return e.bitcast(wide, "half", x.n)
        return _e4m3_to_f16(e, wide)

    def convert(pair: Reg) -> Reg:
        return e.call("llvm.nvvm.e4m3x2.to.f16x2.rn", "half", 2, (pair,))

    if not x.n:
        return e.lane(convert(e.convert("zext", x, "i16")), 0)
    return _by_pairs(e, x, convert)


def _by_pairs(e: Emit, x: Reg, f: Callable[[Reg], Reg]) -> Reg:
    """f on each i16 that packs two i8 lanes; an odd last lane is packed alone."""
    n = x.n
    even = x if n % 2 == 0 else e.concat([x, e.const(0, "i8")])
    words = e.bitcast(even, "i16", even.n // 2 if even.n > 2 else 0)
    out = e.concat([f(w) for w in e.lane_list(words)]) if words.n else f(words)
    return out if n % 2 == 0 else e.gather(out, range(n))


def _e4m3_to_f16(e: Emit, high: Reg) -> Reg:
    """`high` holds the byte in bits 8-15."""
    n = high.n
    body = e.int_op("lshr", e.int_op("and", high, 0x7F00), 1)
    # The exponent's bias grows by 8, which a product does, subnormals included.
    scaled = e.bitcast(e.binary("fmul", e.bitcast(body, "half", n), e.const(256.0, "half", n)),
                       "i16", n)
    nan = e.compare("eq", body, e.const(0x3F80, "i16", n))
    magnitude = e.select(nan, e.const(0x7FFF, "i16", n), scaled)
    return e.bitcast(e.binary("or", magnitude, e.int_op("and", high, 0x8000)), "half", n)


def _to_fp8(cg: CodeGen, x: Reg, name: str) -> Reg:
    """f16 or f32 to fp8, saturating."""
    if not _converts_fp8(cg):
        return _f32_to_fp8_by_bits(cg.e, x, name)
    kind = "e4m3x2" if name == "f8e4m3" else "e5m2x2"
    e = cg.e

    def convert(low: Reg, high: Reg) -> Reg:
        # The first operand goes to the high half.
        source, args = ("f16x2", (e.build([low, high]),)) if x.elem == "half" else \
            ("ff", (high, low))
        return e.bitcast(e.call(f"llvm.nvvm.{source}.to.{kind}.rn", "i16", 0, args), "i8", 2)

    return in_pairs(e, convert, x, "i8")


def _f32_to_fp8_by_bits(e: Emit, x: Reg, name: str) -> Reg:
    """Rounding to nearest even by integer arithmetic, for targets without the conversion."""
    mantissa, bias, largest = _FP8[name]
    n, drop = x.n, 23 - mantissa
    bits = e.bitcast(x, "i32", n)
    sign = e.int_op("and", e.int_op("lshr", bits, 24), 0x80)
    size = e.generic("minnum", e.generic("fabs", x), e.const(largest, "float", n))
    raw = e.bitcast(size, "i32", n)
    odd = e.int_op("and", e.int_op("lshr", raw, drop), 1)
    rounded = e.int_op("add", e.binary("add", raw, odd), (1 << (drop - 1)) - 1)
    normal = e.int_op("sub", e.int_op("lshr", rounded, drop), (127 - bias) << mantissa)
    # One unit in the last place of this constant is the smallest fp8 subnormal.
    magic = 2.0 ** (1 - bias - mantissa + 23)
    added = e.binary("fadd", size, e.const(magic, "float", n))
    small = e.binary("sub", e.bitcast(added, "i32", n),
                     e.bitcast(e.const(magic, "float", n), "i32", n))
    tiny = e.compare("olt", size, e.const(2.0 ** (1 - bias), "float", n))
    value = e.binary("or", e.select(tiny, small, normal), sign)
    nan = e.compare("uno", x, x)
    return e.convert("trunc", e.select(nan, e.const(0x7F, "i32", n), value), "i8")
