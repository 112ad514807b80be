"""How statements of random programs are drawn: arithmetic, shapes, reductions, promises."""

from __future__ import annotations

from math import prod

from tests.fuzz.explicit import SMALL
from tests.fuzz.generate import Generator, Kinds
from tests.fuzz.inline_asm import INLINE
from tests.fuzz.memory_draws import BLOCKS
from tests.fuzz.numerics import (
    ALL,
    EXACT,
    FLOATS,
    FP8,
    FUNCTIONS,
    INTS,
    LIBDEVICE,
    is_float,
    limits,
    width,
)
from tests.fuzz.order import ORDER
from tests.fuzz.products import PRODUCTS
from tests.fuzz.program import Program, Value
from tests.fuzz.scans import SCANS


def elementwise(g: Generator) -> None:
    rng = g.rng
    x = g.any(lambda v: v.dtype not in FP8)
    v = g.value(x)
    kind = rng.random()
    if kind < 0.25:
        y = g.literal(v.dtype)
        y = g.constexpr(y) if rng.random() < 0.2 else y
    elif kind < 0.6:
        y = g.like(x)
    else:  # promoted, or broadcast
        y = g.any(lambda w: w.dtype not in FP8 and (w.shape == v.shape or not w.shape))
    if is_float(v.dtype):
        _float(g, x, y)
    elif v.dtype == "int1":
        g.put("bits", x, y, symbol=rng.choice("&|^"))
    else:
        _integer(g, x, y)


def _integer(g: Generator, x: str, y: object) -> None:
    rng = g.rng
    kind = rng.randrange(14)
    if kind < 4:
        g.put(rng.choice(["add", "sub", "mul"]), *rng.choice([(x, y), (y, x)]))
    elif kind < 6:
        op = rng.choice(["floordiv", "mod"])
        if isinstance(y, str) and isinstance(g.value(y), Value):  # a zero divisor is poison
            t = g.value(y).dtype
            zero = g.put("compare", y, 0 if t != "int1" else False, symbol="==")
            y = g.put("where", zero, rng.choice([3, 7]), y)
        g.put(op, x, y)
    elif kind == 6:
        g.put("bits", x, y, symbol=rng.choice("&|^"))
    elif kind < 9:
        g.put("shift", x, rng.choice([y, 1, 3, 31]), symbol=rng.choice(["<<", ">>"]))
    elif kind == 9:
        g.put("invert", x)
    elif kind == 10:
        g.put("neg", x)
    elif kind == 11:
        g.put("abs", x, form="tl.abs")
    elif kind == 12:
        g.put("cdiv", g.put("bits", x, 1023, symbol="&"), rng.choice([3, 4, 16]), form="tl.cdiv")
    else:
        _either(g, x, y)


def _float(g: Generator, x: str, y: object) -> None:
    rng = g.rng
    kind = rng.randrange(10)
    if kind < 4:
        g.put(rng.choice(["add", "sub", "mul"]), *rng.choice([(x, y), (y, x)]))
    elif kind < 6:
        g.put("fma", x, y, g.like(x))
    elif kind == 6:
        g.put("neg", x) if rng.random() < 0.5 else g.put("abs", x, form="tl.abs")
    elif kind == 7:
        g.put("function", x, form=rng.choice(["tl.floor", "tl.ceil", "tl.sqrt", "tl.sqrt_rn"]))
    else:
        _either(g, x, y)


def _either(g: Generator, x: str, y: object) -> None:
    rng = g.rng
    kind = rng.randrange(4)
    if kind == 0:
        g.put("clamp", x, rng.choice([y, -1 if g.value(x).dtype not in INTS else 1]), 5)
    elif kind == 1:
        g.put("between", x, g.like(x))
    else:
        nan = is_float(g.value(x).dtype) and rng.random() < 0.4
        g.put("extreme", x, y, name=rng.choice(["minimum", "maximum"]), nan=nan)


def choose(g: Generator) -> None:
    rng = g.rng
    x = g.any()
    shape = g.value(x).shape
    y = rng.choice([g.like(x), g.any(lambda v: v.shape == shape), g.literal(g.value(x).dtype)])
    g.put("where", g.mask(shape) if shape else g.any(lambda v: not v.shape), x, y)


def compare(g: Generator) -> None:
    x = g.any(lambda v: v.dtype not in FP8)
    y = g.rng.choice([g.like(x), g.literal(g.value(x).dtype)])
    g.put("compare", x, y, symbol=g.rng.choice(["<", "<=", ">", ">=", "==", "!="]))


def cast(g: Generator) -> None:
    rng = g.rng
    x = g.any()
    have = g.value(x).dtype
    form = rng.choice(["", "", "", "cast", "rtz", "bits"])
    if form == "bits":
        g.put("cast", x, t=rng.choice([t for t in ALL if width(t) == width(have)]), form=form)
        return
    if form == "rtz" and not is_float(have):
        form = ""
    t = rng.choice([t for t in FLOATS if form != "rtz" or width(t) < width(have)])
    t = t if form == "rtz" else rng.choice([*ALL, t])
    y = g.put("cast", x, t=t, form=form)
    if form == "" and rng.random() < 0.4:  # chains of casts
        g.put("cast", y, t=rng.choice([have, *ALL]), form="")


def function(g: Generator) -> None:
    """A function that is known within a bound: stored, perhaps after it was moved."""
    rng = g.rng
    x = g.any(lambda v: v.dtype in FLOATS)
    name = rng.choice([*FUNCTIONS, *EXACT])
    if name in ("exp", "exp2") or rng.random() < 0.3:
        x = g.put("clamp", x, -20, 20)
    forms = [f"tl.{name}", f"tl.math.{name}"] if name not in LIBDEVICE else \
        [f"tl.extra.libdevice.{name}", f"tl.math.{name}"]
    y = g.put("function", x, form=rng.choice(forms))
    if g.value(y).shape and rng.random() < 0.3:
        y = g.put("ravel", y)
    if name in FUNCTIONS:
        g.store(y)


def quotient(g: Generator) -> None:
    rng, x = g.rng, g.any(lambda v: v.dtype in ("float16", "bfloat16", "float32", "float64", *INTS))
    y = rng.choice([3, 7.0, 0.1, g.like(x)])
    if rng.random() < 0.4:
        g.put("div_rn", x, y, form=rng.choice(
            ["tl.div_rn({}, {})", "tl.fdiv({}, {}, ieee_rounding=True)"]))
        return
    y = g.put("truediv", x, y, form=rng.choice(["{} / {}", "tl.fdiv({}, {})"]))
    if g.value(y).bound is not None:
        g.store(y)


def library(g: Generator) -> None:
    """What the language's library has."""
    rng = g.rng
    kind = rng.randrange(3)
    if kind == 0:
        i = g.put("program", axis=0)
        g.put_two("swizzle2d", i, g.put("to_tensor", x=rng.choice([0, 1, 2])), size_i=5, size_j=3,
                  group=rng.choice([1, 2, 4]))
        return
    x = g.any(lambda v: v.dtype == "float32" and (kind == 1 or len(v.shape) == 1))
    g.store(g.put("sigmoid" if kind == 1 else "softmax_row", g.put("clamp", x, -30, 30)))


def broadcast(g: Generator) -> None:
    rng, x = g.rng, g.any()
    shape = g.value(x).shape
    if len(shape) < 4 and rng.random() < 0.5:
        axis = rng.randint(0, len(shape))
        rank = rng.randint(axis + 1, len(shape) + 2)  # with fewer `:` than dimensions, or more
        g.put("expand_dims", x, axis=axis, rank=rng.choice([None, rank]))
        return
    if rng.random() < 0.2:
        g.put_two("broadcast", x, g.any(lambda v: not v.shape or v.shape == shape))
        return
    wide = tuple(rng.choice([3, 8, 12]) if n == 1 else n for n in shape) or g.shape()
    if wide and prod(wide) <= g.elements:
        g.put("broadcast_to", x, shape=wide, form="tl.broadcast_to")


def reshape(g: Generator) -> None:
    rng, x = g.rng, g.any(lambda v: bool(v.shape))
    shape = g.value(x).shape
    kind = rng.random()
    if prod(shape) == 1 and kind < 0.3:
        g.put("item", x)
    elif len(shape) > 1 and kind < 0.35:
        order = tuple(rng.sample(range(len(shape)), len(shape)))
        g.put("permute", x, order=order, form=rng.choice(["tl.permute", "tl.trans"]))
    elif len(shape) > 1 and kind < 0.45:
        g.put("trans", x, form="tl.trans")
    elif kind < 0.5:
        g.put("ravel", x)
    else:
        left, new = prod(shape), []
        for _ in range(rng.choice([0, 1, 1, 2, 3])):
            new.append(rng.choice([d for d in range(1, left + 1) if left % d == 0]))
            left //= new[-1]
        g.put("reshape", x, shape=(*new, left), form=rng.choice(["tl.reshape", "tl.view"]))


def pairs(g: Generator) -> None:
    """Two tiles side by side, and a tile cut into its halves."""
    rng, kind = g.rng, g.rng.randrange(4)
    x = g.any(lambda v: 2 * v.x.size <= g.elements and len(v.shape) < 4)
    shape = g.value(x).shape
    if kind == 0:
        g.put("cat", x, g.like(x), dim=rng.randrange(max(1, len(shape))))
    elif kind == 1:
        g.put("interleave", x, rng.choice([g.like(x), g.literal(g.value(x).dtype)]))
    else:
        y = g.put("join", *rng.choice([(x, g.like(x)), (x, g.literal(g.value(x).dtype))]))
        if kind == 3 or rng.random() < 0.3:
            order = (*rng.sample(range(len(shape)), len(shape)), len(shape))
            y = g.put("permute", y, order=order, form="tl.permute") if len(shape) > 1 else y
            g.put_two("split", y, form=rng.choice(["tl.split({})", "{}.split()"]))
    even = g.any(lambda v: bool(v.shape) and v.x.size % 2 == 0)
    if rng.random() < 0.5:
        left = g.value(even).x.size // 2
        y = g.put("reshape", even, shape=rng.choice([(left, 2), (1, left, 2)]), form="tl.reshape")
        g.put_two("split", y, form="tl.split({})")


def random(g: Generator) -> None:
    """Random words and floats, numbered by integers that are there or by places."""
    rng, kind = g.rng, g.rng.randrange(8)
    x = g.any(lambda v: v.dtype in INTS and v.x.size <= 256)
    seed, rounds, i = rng.choice([0, 1, 12345, -3, 2 ** 40 + 5]), rng.choice([1, 7, 10]), \
        rng.choice([None, None, None, 0, 1, 2, 3])
    if kind == 0:
        g.put("umulhi", x, rng.choice([g.like(x), 3]))
    elif kind == 1:
        g.put("philox", x, seed=seed, rounds=rounds, i=i or 0)
    elif kind == 2:
        word = g.put("cast", x, t=rng.choice(["uint32", "uint64"]), form="")
        g.put("philox_impl", word, k=77, rounds=rounds, i=i or 0)
    elif kind == 3:
        g.put("randint", x, seed=seed, rounds=rounds, i=i)
    elif kind == 4:
        g.put("uniform", g.put("randint", x, seed=seed, rounds=rounds, i=i))
    elif kind == 5:
        g.put("rand", x, seed=seed, i=i)
    elif kind == 6:
        g.store(g.put("randn", x, seed=seed, i=i))
    else:
        u, v = (g.put("rand", x, seed=s, i=i) for s in (seed, 99))
        g.store(g.put("normal", u, v, i=rng.randrange(2)))


def reduce(g: Generator) -> None:
    rng = g.rng
    x = g.any(lambda v: bool(v.shape) and v.dtype not in FP8)
    v = g.value(x)
    rest = {"axis": rng.choice([None, *range(len(v.shape))]), "keep": rng.random() < 0.3}
    kind = rng.randrange(8)
    if kind < 2 or v.dtype == "int1":
        dtype = rng.choice([None, None, None, "int64", "float32", "int32"])
        if is_float(v.dtype) and rng.random() < 0.5:
            x = g.put("function", g.put("clamp", x, -8.0, 8.0), form="tl.floor")
        g.put("sum", x, dtype=dtype, **rest)
    elif kind == 2 and v.dtype in INTS:
        g.put(rng.choice(["xor_sum", "reduce_or"]), x, **rest)
    elif kind == 3 and v.dtype in INTS:
        g.put_two("reduce_pair", x, g.like(x), **rest)
    elif kind == 4 and v.dtype in INTS:
        g.put("reduce_times", x, **rest)
    elif kind == 5:
        g.put("arg", x, name=rng.choice(["argmax", "argmin"]), left=rng.random() < 0.8, **rest)
    elif kind == 6:
        g.put_two("best_index", x, name=rng.choice(["max", "min"]), **rest)
    else:
        g.put("best", x, name=rng.choice(["max", "min"]), **rest)


def source(g: Generator) -> None:
    """A tile out of nothing."""
    rng, t = g.rng, g.dtype()
    kind = rng.randrange(7)
    if kind == 0:
        x = g.literal(t if t not in FP8 else "float32")
        g.put("full", shape=g.shape(), x=x, t=t)
    elif kind == 1:
        g.put("zeros", shape=g.shape(), t=t)
    elif kind == 2:
        g.put("zeros_like", g.any())
    elif kind == 3:
        lo = rng.choice([0, 0, 3, -5, 2 ** 31 - 200])
        g.put("arange", lo=lo, hi=lo + rng.choice([1, 5, 12, 100, 128]))
    elif kind == 4:
        g.put("splat", g.any(lambda v: not v.shape), shape=g.shape(), t=t)
    elif kind == 5:
        g.put("to_tensor", x=rng.choice([3, 1.5, True, 2 ** 31, -7]))
    else:
        g.put("programs", axis=rng.choice([0, 1, 2]))


def promise(g: Generator) -> None:
    rng, kind = g.rng, g.rng.randrange(6)
    if kind == 0:
        g.put("multiple_of", g.put("mul", g.put("program", axis=0), 16), n=rng.choice([4, 16]))
    elif kind < 3:
        at = g.put("arange", lo=0, hi=rng.choice([32, 96, 128]))
        if kind == 1:
            g.put("max_contiguous", at, n=rng.choice([4, 32]))
        else:
            g.put("max_constancy", g.put("floordiv", at, 4), n=rng.choice([2, 4]))
    elif kind == 3:
        g.do("assume", g.put("program", axis=1), n=0)
    elif kind == 4:
        g.do("device_assert", g.any(lambda v: not is_float(v.dtype)))
    else:
        g.do(rng.choice(["debug_barrier"])) if rng.random() < 0.7 else g.do("static_assert", n=1)


def poison(g: Generator) -> None:
    """What is masked off is used, but not chosen."""
    rng, shape = g.rng, g.shape((1, 2, 2, 3))
    t = rng.choice(["int32", "float32", "int8", "uint64", "float16"])
    mask = g.mask(shape)
    p = g.put("add", g.argument("whole", t), g.lanes(shape))
    x = g.put("load", p, mask, None, more="")
    x = g.put("add", x, x)
    if rng.random() < 0.5:
        inside = g.put("compare", x, 0, symbol=">")
        g.put("bits", *rng.choice([(mask, inside), (inside, mask)]), symbol="&")
    g.put("where", mask, x, rng.choice([0, 1]))


def wrapped(g: Generator) -> None:
    """Integers that wrap and are divided: as offsets, in a mask, or as they are."""
    rng, shape = g.rng, g.shape((1, 1, 2, 2))
    at = g.wrapping(shape)
    kind = rng.randrange(3)
    if kind == 0:
        p = g.put("add", g.argument("whole", rng.choice(["float32", "int8", "int16"])),
                  g.bounded(at, 500))
        g.put("load", p, None, None, more="")
    elif kind == 1:
        limit = int(rng.choice(g.value(at).x.reshape(-1).tolist()))
        g.put("compare", at, limit, symbol=rng.choice(["<", "<=", ">", "=="]))


def scalar(g: Generator) -> None:
    """A number that the launch gives, in arithmetic."""
    rng, n = g.rng, g.number_argument()
    if limits(g.value(n).dtype)[1] > 1 and rng.random() < 0.5:
        g.put("add", g.any(lambda v: v.dtype in INTS), n)
    else:
        g.put("mul", n, rng.choice([1, 2, 3]))


KINDS: Kinds = {
    Generator.load: 14, elementwise: 22, choose: 5, compare: 3, cast: 7, function: 4, quotient: 2,
    library: 1, broadcast: 7, reshape: 9, pairs: 5, random: 2, reduce: 10, source: 3, promise: 3,
    poison: 3, wrapped: 8, scalar: 2, Generator.pointers: 4, Generator.work: 6,
    Generator.atomic: 4, Generator.control: 8, Generator.early_return: 1, Generator.store: 3,
    **BLOCKS, **SMALL, **SCANS, **ORDER, **INLINE}


def generate(seed: int, size: int = 9, elements: int = 512) -> Program:
    """The program of a seed: about one in three has products of matrices or is written at the
    explicit level."""
    g = Generator(seed, KINDS, size, elements)
    loads = 3
    if g.rng.random() < 0.35:
        g.size //= 2
        loads = 1
        g.attempt(g.rng.choices(list(PRODUCTS), list(PRODUCTS.values()))[0])
    if g.size:  # not a whole kernel already
        for _ in range(loads):
            g.attempt(Generator.load)
        for _ in range(g.size):
            g.statement()
        g.store_leaves(6)
    return g.program
