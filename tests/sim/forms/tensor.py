"""Forms of mbarriers, of bulk copies, and of tensor copies in all swizzles, ranks and edges."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.sim.forms.base import (
    BITS,
    Array,
    Form,
    Match,
    kind_of,
    poison,
    seed_of,
    special,
    values,
    width,
)
from tilec.sim import TensorMap

BLOCK = 128
SPACE = 16384
TYPES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16")
SWIZZLES = (0, 32, 64, 128)
"""In the order of the driver's numbers (CUtensorMapDataType, CUtensorMapSwizzle)."""
MISALIGNED = "misaligned tensor copy"
NEGATIVE = "those of stores must not be negative"


class Map(NamedTuple):
    """A tensor map over argument `array` of a form; the rest as tilec.sim.TensorMap has it."""

    array: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int = 0
    fill: str = "zero"

    def record(self, arrays: Sequence[Array]) -> TensorMap:
        """For the simulator."""
        return TensorMap(arrays[self.array], *self[1:])

    def encoded(self, pointer: int) -> tuple[Any, int]:
        """For the driver: a buffer that holds the map of the array at `pointer`, and its address.

        Without cuda-python, which does not align the 128 bytes to 64 as the driver asks.
        """
        held = ctypes.create_string_buffer(192)
        at, rank = -(-ctypes.addressof(held) // 64) * 64, len(self.shape)
        longs, words = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
        status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
            ctypes.c_void_p(at), TYPES.index(self.dtype), rank, ctypes.c_void_p(pointer),
            longs(*self.shape), longs(*self.strides), words(*self.box), words(*self.steps), 0,
            SWIZZLES.index(self.swizzle), 0, int(self.fill == "nan"))
        if status:
            raise RuntimeError(f"cuTensorMapEncodeTiled gives {status} for {self}")
        return held, at


START = f"""
    .shared .align 1024 .b8 tile[{SPACE}]; .shared .align 8 .b64 bars[8];
    .reg .b32 %tile, %bar, %at, %word; .reg .pred %first; .reg .b64 %there;
    mov.u32 %tile, tile; mov.u32 %bar, bars; setp.eq.u32 %first, %t, 0;
    @%first mbarrier.init.shared::cta.b64 [%bar], 1;
    @%first fence.mbarrier_init.release.cluster; bar.sync 0;"""
BOTH = "fence.proxy.async.shared::cta; bar.sync 0;"
_LOOPS = {
    "fill": "ld.global.b32 %word, [%there]; st.shared.b32 [%at], %word;",
    "dump": "ld.shared.b32 %word, [%at]; st.global.b32 [%there], %word;",
}


def wait(parity: int = 0, bar: str = "%bar", acquire: str = "") -> str:
    return f"""{{ .reg .pred %w; W: mbarrier.try_wait.parity{acquire}.shared::cta.b64 %w, [{bar}],
    {parity}; @!%w bra W; }}"""


def transfer(way: str, size: int, base: str, to: str = "%tile") -> str:
    """All threads copy `size` bytes of global memory at `base` into shared memory, or back."""
    return f"""{{ .reg .b32 %n; mov.u32 %n, %t; LOOP: mad.lo.u32 %at, %n, 4, {to};
    mad.wide.u32 %there, %n, 4, {base}; {_LOOPS[way]} add.u32 %n, %n, {BLOCK}; .reg .pred %more;
    setp.lt.u32 %more, %n, {size // 4}; @%more bra LOOP; bar.sync 0; }}"""


def small(dtype: str, count: int, seed: int) -> Array:
    """Whole numbers of a type as its bits, all of them different in their order."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, 100, count)
    if dtype == "bf16":
        return (drawn.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    kind = np.dtype({"u": "uint", "s": "int", "f": "float"}[dtype[0]] + dtype[1:])
    return drawn.astype(kind).view(f"u{kind.itemsize}")


# -- mbarriers -----------------------------------------------------------------------------------

class Script:
    """Operations of one thread, whose states and predicates are stored in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0

    def do(self, text: str) -> Script:
        self.lines.append(text)
        return self

    def word(self, register: str) -> Script:
        self.lines.append(f"st.global.b32 [%O0+{4 * self.count}], {register};")
        self.count += 1
        return self

    def tests(self) -> Script:
        """Whether the phases of parity 0 and 1 are over."""
        for parity in (0, 1):
            self.do(f"mbarrier.test_wait.parity.shared::cta.b64 %p1, [%bar+8], {parity};"
                    "selp.b32 %r1, 1, 0, %p1;").word("%r1")
        return self

    def form(self, name: str) -> Form:
        body = "\n".join([START, "@!%first bra END;", *self.lines, "END:"])
        return special(name, body, [poison("i32", self.count)], block=BLOCK)


def init(count: int) -> Script:
    return Script().do(f"mbarrier.init.shared::cta.b64 [%bar+8], {count};")


def mbarriers() -> Iterator[Form]:
    arrive = "mbarrier.arrive.shared::cta.b64 %w1, [%bar+8];"
    yield init(1).tests().do(arrive).tests().do(arrive).tests().do(arrive).tests().form(
        "mbarrier phases of one arrival")
    yield init(3).do(arrive).tests().do(arrive).tests().do(arrive).tests().form(
        "mbarrier phase of three arrivals")
    script = init(10)
    for text in (arrive, "mbarrier.arrive.shared::cta.b64 %w1, [%bar+8], 4;",
                 "mbarrier.arrive.noComplete.shared::cta.b64 %w1, [%bar+8], 2;",
                 "mbarrier.arrive.release.cta.shared::cta.b64 %w1, [%bar+8], 3;"):
        script.do(text + "mbarrier.pending_count.b64 %r1, %w1;").word("%r1").tests()
    yield script.form("mbarrier pending counts")
    yield (init(2).do("mbarrier.arrive_drop.shared::cta.b64 %w1, [%bar+8];").tests().do(arrive)
           .tests().do(arrive).tests().do(arrive).tests().form("mbarrier.arrive_drop"))
    script = init(1).do(arrive)
    for state in ("%w1", "%w2"):
        script.do(f"mbarrier.test_wait.shared::cta.b64 %p1, [%bar+8], {state};"
                  "selp.b32 %r1, 1, 0, %p1; mbarrier.arrive.shared::cta.b64 %w2, [%bar+8];"
                  ).word("%r1")
    yield script.form("mbarrier.test_wait of states")
    yield (init(1).do("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar+8], 48;").tests()
           .do("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%bar+8], 16;").tests()
           .do("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%bar+8], 32;").tests()
           .do("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%bar+8], 8;").do(arrive).tests()
           .do("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%bar+8], 8;").tests()
           .form("mbarrier transaction counts"))
    yield (init(1).do(arrive).do("mbarrier.inval.shared::cta.b64 [%bar+8];"
                                 "mbarrier.init.shared::cta.b64 [%bar+8], 2;").tests().do(arrive)
           .tests().do(arrive).tests().form("mbarrier.inval"))
    data = values("i32", seed_of("exchange"), BLOCK)
    by_state = """{ .reg .pred %w; W: mbarrier.try_wait.shared::cta.b64 %w, [%bar+8], %w1;
        @!%w bra W; }"""
    spin = """{ .reg .pred %w; W: mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 %w,
        [%bar+8], 0; @!%w bra W; }"""
    rounds = "".join(f"""st.shared.b32 [%r2], %r1; mbarrier.arrive.shared::cta.b64 %w1, [%bar+8];
        {way} ld.shared.b32 %r4, [%r3]; mad.lo.u32 %r1, %r1, 5, %r4; bar.sync 0;
        """ for way in (wait(0, "%bar+8"), by_state, spin))
    yield special("mbarrier exchange", f"""{START}
        @%first mbarrier.init.shared::cta.b64 [%bar+8], {BLOCK}; bar.sync 0;
        mad.lo.u32 %r2, %t, 4, %tile; xor.b32 %r3, %t, 77; mad.lo.u32 %r3, %r3, 4, %tile;
        ld.global.b32 %r1, [%i0]; {rounds} st.global.b32 [%o0], %r1;""",
        [poison("i32", BLOCK)], [data], BLOCK)
    for how, count in (("", 2 * BLOCK), (".noinc", BLOCK)):
        text = "mbarrier.arrive.shared::cta.b64 %w1, [%bar+8];" if not how else ""
        yield special(f"cp.async.mbarrier.arrive{how}", f"""{START}
            @%first mbarrier.init.shared::cta.b64 [%bar+8], {BLOCK}; bar.sync 0;
            mad.lo.u32 %r2, %t, 16, %tile; cp.async.ca.shared.global [%r2], [%i0], 16;
            cp.async.mbarrier.arrive{how}.shared::cta.b64 [%bar+8]; {text} {wait(0, "%bar+8")}
            xor.b32 %r3, %t, 5; mad.lo.u32 %r3, %r3, 16, %tile;
            ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r3];
            st.global.v4.b32 [%o0], {{%r4, %r5, %r6, %r7}};""",
            [poison("i32", 4 * BLOCK)], [values("i32", seed_of(how, count), 4 * BLOCK)], BLOCK)


# -- bulk copies ---------------------------------------------------------------------------------

def bulk() -> Iterator[Form]:
    signal = "mbarrier::complete_tx::bytes"
    for to in ("shared::cluster", "shared::cta"):
        body = f"""{START} {transfer("fill", 1024, "%I1")} {BOTH}
        @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 272;
        @%first cp.async.bulk.{to}.global.{signal} [%tile+16], [%I0+32], 256, [%bar];
        @%first cp.async.bulk.{to}.global.{signal} [%tile+512], [%I0], 16, [%bar];
        {wait()} {transfer("dump", 1024, "%O0")}"""
        yield special(f"cp.async.bulk.{to}.global", body, [poison("i32", 256)],
                      [values("i32", seed_of(to), 256), small("u32", 256, 1)], BLOCK)
    store = "@%first cp.async.bulk.commit_group; @%first cp.async.bulk.wait_group{} 0;"
    for read in ("", ".read"):
        body = f"""{START} {transfer("fill", 1024, "%I0")} {BOTH}
        @%first cp.async.bulk.global.shared::cta.bulk_group [%O0+16], [%tile+64], 304;
        {store.format(read)}"""
        yield special(f"cp.async.bulk.global.shared::cta wait_group{read}", body,
                      [poison("i32", 128)], [values("i32", seed_of(read), 256)], BLOCK)
    body = f"""{START} {transfer("fill", 1024, "%I0")} {BOTH}
        @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 64;
        @%first cp.async.bulk.shared::cluster.shared::cta.{signal} [%tile+960], [%tile], 64, [%bar];
        {wait()} {transfer("dump", 1024, "%O0")}"""
    yield special("cp.async.bulk.shared::cluster.shared::cta without clusters", body,
                  [poison("i32", 256)], [small("u32", 256, 2)], BLOCK, fault="without clusters")
    for op, types in (("add", "u32 s32 u64 f16 bf16 f32 f64"), ("min", "u32 s32 u64 s64 f16 bf16"),
                      ("max", "u32 s32 u64 s64 f16 bf16"), ("and", "b32 b64"), ("or", "b32 b64"),
                      ("xor", "b32 b64"), ("inc", "u32"), ("dec", "u32")):
        for ty in types.split():
            noftz = ".noftz" if op == "add" and ty in ("f16", "bf16") else ""
            form = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}{noftz}.{ty}"
            count = 512 * 8 // width(kind_of(ty))
            body = f"""{START} {transfer("fill", 512, "%I0")} {BOTH}
            @%first {form} [%O0], [%tile], 512; {store.format("")}"""
            memory, operand = (values(kind_of(ty), seed_of(form, i), count) for i in range(2))
            match = Match(ty) if ty.startswith(("f", "bf")) else BITS
            yield special(form, body, [memory], [operand], BLOCK, match=[match])


# -- tensor copies -------------------------------------------------------------------------------

def loads() -> Iterator[Form]:
    for swizzle in (0, 32, 64, 128):
        for dtype in ("u8", "bf16", "f32", "f64"):
            each = 16 * 8 // width(kind_of(dtype))
            inner = (swizzle or 48) * each // 16
            yield load(f"{dtype} swizzle {swizzle}", dtype, (24, 2 * inner), (inner, 11),
                       (inner // 2 // each * each, 5), swizzle=swizzle)
    for dtype in ("u16", "u32", "s32", "u64", "s64", "f16"):
        inner = 256 // width(kind_of(dtype))
        yield load(dtype, dtype, (9, 2 * inner), (inner, 4), (inner, 7))
    for name, shape, box, corner in (
        ("1d over the end", (48,), (32,), (28,)), ("1d before the start", (48,), (32,), (-8,)),
        ("1d outside", (48,), (16,), (80,)), ("2d before the corner", (9, 24), (16, 4), (-8, -3)),
        ("2d over the corner", (9, 24), (16, 4), (16, 7)),
        ("2d around all", (9, 24), (32, 16), (-4, -4)),
        ("3d", (5, 6, 16), (8, 3, 2), (12, 4, -1)),
        ("4d", (3, 4, 5, 16), (8, 2, 3, 2), (-4, -1, -1, 2)),
        ("5d", (2, 3, 4, 5, 8), (8, 2, 2, 2, 2), (4, 4, 3, -1, 1)),
        ("5d whole", (2, 3, 4, 5, 8), (8, 5, 4, 3, 2), (0, 0, 0, 0, 0))):
        yield load(name, "f32", shape, box, corner)
    yield load("2d over the corner swizzle 128", "bf16", (13, 72), (64, 8), (32, 9), swizzle=128)
    yield load("narrow box swizzle 128", "f16", (12, 64), (16, 9), (8, 1), swizzle=128)
    yield load("narrow box swizzle 64", "f16", (12, 64), (16, 9), (0, 2), swizzle=64)
    yield load("element strides", "f16", (12, 40), (16, 5), (24, 1), steps=(1, 2))
    yield load("element strides 3d", "s32", (6, 7, 8), (8, 6, 4), (0, -1, 1), steps=(1, 3, 2))
    for dtype in ("f16", "bf16", "f32", "f64"):
        yield load(f"nan {dtype}", dtype, (5, 16), (16, 8), (8, 2), fill="nan")
    yield load("ragged rows", "f32", (9, 24), (16, 4), (16, 2), extent=21)
    yield load("misaligned 1d", "f32", (48,), (32,), (30,), fault=MISALIGNED)
    yield load("misaligned swizzle 128", "f16", (12, 64), (16, 9), (3, 1), swizzle=128,
               fault=MISALIGNED)


def packed(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Strides in bytes, innermost first and left out, of a tensor with the innermost last."""
    strides = [shape[-1] * size]
    for extent in shape[-2:0:-1]:
        strides.append(strides[-1] * extent)
    return tuple(strides) if len(shape) > 1 else ()


def extents(box: tuple[int, ...], steps: tuple[int, ...]) -> list[int]:
    return [box[0], *(-(-n // s) for n, s in zip(box[1:], steps[1:], strict=True))]


def load(name: str, dtype: str, shape: tuple[int, ...], box: tuple[int, ...],
         corner: tuple[int, ...], steps: tuple[int, ...] = (), swizzle: int = 0,
         fill: str = "zero", extent: int = 0, fault: str = "") -> Form:
    """One box into shared memory that held something else; all that it may reach is the result.

    `shape` has the innermost dimension last; box, corner and steps have it first. Rows end after
    `extent` elements, if it is given, and what the shape has beyond is padding.
    """
    rank, size = len(shape), width(kind_of(dtype)) // 8
    steps = steps or (1,) * rank
    made = extents(box, steps)
    covered = int(np.prod(made[1:])) * max(box[0] * size, swizzle)
    seen = -(-covered // 1024) * 1024
    name = f"cp.async.bulk.tensor.{rank}d load {name}"
    form = (f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile"
            ".mbarrier::complete_tx::bytes")
    body = f"""{START} {transfer("fill", seen, "%I1")} {BOTH}
    @%first prefetch.tensormap [%M0];
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {int(np.prod(made)) * size};
    @%first {form} [%tile], [%M0, {{{", ".join(map(str, corner))}}}], [%bar];
    {wait()} {transfer("dump", seen, "%O0")}"""
    tensor = small(dtype, int(np.prod(shape)), seed_of(name))
    tensor_map = Map(1, dtype, (extent or shape[-1], *shape[-2::-1]), packed(shape, size), box,
                     steps, swizzle, fill)
    return special(name, body, [poison("i32", seen // 4)],
                   [tensor, np.full(seen // 4, 0x5A5A5A5A, np.uint32)], BLOCK, maps=[tensor_map],
                   fault=fault)


def stores() -> Iterator[Form]:
    for swizzle in (0, 32, 64, 128):
        yield store(f"bf16 swizzle {swizzle}", "", "bf16", (12, 96), ((swizzle or 64) // 2, 7),
                    (16, 3), swizzle)
    for name, shape, box, corner in (
        ("1d over the end", (48,), (32,), (28,)), ("2d outside", (9, 24), (16, 4), (24, 2)),
        ("2d over the corner", (9, 24), (16, 4), (16, 7)),
        ("2d over all", (9, 24), (32, 16), (0, 0)), ("3d", (5, 6, 16), (8, 3, 2), (12, 4, 4)),
        ("4d", (3, 4, 5, 16), (8, 2, 3, 2), (12, 4, 2, 2)),
        ("5d", (2, 3, 4, 5, 8), (8, 2, 2, 2, 2), (4, 4, 3, 2, 1))):
        yield store(name, "", "f32", shape, box, corner)
    yield store("2d ragged rows", "", "f32", (9, 24), (16, 4), (16, 2), extent=21)
    yield store("1d misaligned", "", "f32", (48,), (32,), (30,), fault=MISALIGNED)
    yield store("2d before the rows", "", "f32", (9, 24), (16, 4), (-8, 3), fault=NEGATIVE)
    yield store("2d before the columns", "", "f32", (9, 24), (16, 4), (8, -3), fault=NEGATIVE)
    yield store("3d before", "", "f32", (5, 6, 16), (8, 3, 2), (8, 1, -1), fault=NEGATIVE)
    yield store("add before the columns", "add", "u32", (11, 24), (16, 8), (8, -2), fault=NEGATIVE)
    for op, types in (("add", "u32 s32 u64 f16 bf16 f32"), ("min", "s32 u64 f16 bf16"),
                      ("max", "u32 s64 f16 bf16"), ("and", "u32"), ("or", "u64"), ("xor", "s32"),
                      ("inc", "u32"), ("dec", "u32")):
        for dtype in types.split():
            yield store(f"{op} {dtype}", op, dtype, (11, 24), (16, 8), (16, 5))


def store(name: str, op: str, dtype: str, shape: tuple[int, ...], box: tuple[int, ...],
          corner: tuple[int, ...], swizzle: int = 0, extent: int = 0, fault: str = "") -> Form:
    """One box from shared memory; the whole tensor is the result."""
    rank, size = len(shape), width(kind_of(dtype)) // 8
    covered = -(-int(np.prod(box[1:])) * max(box[0] * size, swizzle) // 1024) * 1024
    form = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{op}" if op else (
        f"cp.async.bulk.tensor.{rank}d.global.shared::cta")
    name = f"cp.async.bulk.tensor.{rank}d store {name}"
    body = f"""{START} {transfer("fill", covered, "%I0")} {BOTH}
    @%first {form}.tile.bulk_group [%M0, {{{", ".join(map(str, corner))}}}], [%tile];
    @%first cp.async.bulk.commit_group; @%first cp.async.bulk.wait_group 0;"""
    tile = small(dtype, covered // size, seed_of(name, 1))
    tensor_map = Map(0, dtype, (extent or shape[-1], *shape[-2::-1]), packed(shape, size), box,
                     (1,) * rank, swizzle)
    return special(name, body, [small(dtype, int(np.prod(shape)), seed_of(name))],
                   [tile], BLOCK, maps=[tensor_map], fault=fault)


def forms() -> Iterator[Form]:
    for part in (mbarriers, bulk, loads, stores):
        yield from part()
