"""Tensor maps and bulk copies: boxes of ranks 1 to 5, swizzles, edges, groups, and errors."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.sim.programs import WAIT, hopper
from tilec import sim
from tilec.sim import SimError, TensorMap

Array = np.ndarray[Any, Any]
ONE = (1, 1, 1)
SEEDS = (None, 0, 1, 2)
KINDS = {"u8": np.uint8, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32,
         "s32": np.int32, "f64": np.float64, "u64": np.uint64}  # fmt: skip
SPACE = 16384


def load_kernel(rank: int, size: int, corner: tuple[int, ...], count: int = SPACE,
                wait: str = WAIT) -> str:
    """Loads one box at shared offset 1024 and stores `count` bytes from there, poisoned before."""
    place = ", ".join(str(c) for c in corner)
    return hopper(f"""
    mov.u32 %r2, {count}; mov.u32 %r1, %t;
FILL: shl.b32 %r3, %r1, 2; add.u32 %r3, %r3, %tile; st.shared.b32 [%r3], 0xDEADBEEF;
    add.u32 %r1, %r1, 128; setp.lt.u32 %p1, %r1, {count // 4}; @%p1 bra FILL;
    fence.proxy.async.shared::cta; bar.sync 0;
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {size};
    @%first cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%tile], [%map, {{{place}}}], [%bar];
    {wait.format(bar="%bar", parity=0)}
    mov.u32 %r1, %t;
COPY: shl.b32 %r3, %r1, 2; add.u32 %r4, %r3, %tile; ld.shared.b32 %r5, [%r4];
    cvt.u64.u32 %rd3, %r3; add.u64 %rd3, %rd3, %out; st.global.b32 [%rd3], %r5;
    add.u32 %r1, %r1, 128; setp.lt.u32 %p1, %r1, {count // 4}; @%p1 bra COPY;""")


def expected(tensor: Array, box: tuple[int, ...], corner: tuple[int, ...], swizzle: int,
             steps: tuple[int, ...], fill: float = 0.0) -> tuple[Array, int]:
    """Shared memory after a load, byte by byte from the definition, and the bytes of a box.

    `tensor` has the innermost dimension last; box, corner and steps have it first.
    """
    width = tensor.itemsize
    memory = np.frombuffer(b"\xef\xbe\xad\xde" * (SPACE // 4), np.uint8).copy()
    extents = [box[0], *(-(-n // s) for n, s in zip(box[1:], steps[1:], strict=True))]
    pitch = max(box[0] * width, swizzle)
    for row, outer in enumerate(itertools.product(*(range(n) for n in extents[:0:-1]))):
        for i in range(box[0]):
            index = [i, *outer[::-1]]
            at = [c + j * s for c, j, s in zip(corner, index, (1, *steps[1:]), strict=True)]
            inside = all(0 <= x < n for x, n in zip(at, tensor.shape[::-1], strict=True))
            value = tensor[tuple(at[::-1])] if inside else tensor.dtype.type(fill)
            offset = row * pitch + i * width
            if swizzle:  # the chunk of 16 bytes, flipped by the number of the 128-byte line
                line, chunk, rest = offset // 128, offset // 16 % 8, offset % 16
                flip = line % {32: 2, 64: 4, 128: 8}[swizzle]
                offset = line * 128 + (chunk ^ flip) * 16 + rest
            memory[offset : offset + width] = np.frombuffer(value.tobytes(), np.uint8)
    return memory, int(np.prod(extents)) * width


def random_tensor(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    raw = np.random.default_rng(seed).integers(-100, 100, shape)
    return raw.astype(KINDS[dtype])


def packed(tensor: Array, dtype: str, box: tuple[int, ...], **rest: Any) -> TensorMap:
    """A map of an array with padded rows or not; `tensor` has the innermost dimension last."""
    return TensorMap(tensor, dtype, tensor.shape[::-1], tensor.strides[-2::-1], box, **rest)


def load(tensor: Array, dtype: str, box: tuple[int, ...], corner: tuple[int, ...],
         seed: int | None = None, **rest: Any) -> tuple[Array, Array]:
    """What a load leaves in shared memory, and what it should."""
    steps = rest.get("element_strides", (1,) * len(box))
    fill = np.nan if rest.get("fill") == "nan" else 0
    want, size = expected(tensor, box, corner, rest.get("swizzle", 0), steps, fill)
    out = np.zeros(SPACE, np.uint8)
    sim.run(load_kernel(len(box), size, corner), "k", [out, packed(tensor, dtype, box, **rest)],
            ONE, shared_bytes=2 * SPACE, seed=seed)
    return out, want


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("dtype", KINDS)
def test_swizzles(dtype: str, swizzle: int) -> None:
    width = np.dtype(KINDS[dtype]).itemsize
    inner = (swizzle or 64) // width
    tensor = random_tensor((40, 2 * inner), dtype, swizzle)
    got, want = load(tensor, dtype, (inner, 19), (inner // 2, 7), swizzle=swizzle)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("shape", "box", "corner"), [
    ((50,), (32,), (28,)), ((50,), (32,), (-8,)), ((50,), (16,), (80,)),
    ((9, 24), (16, 4), (-8, -3)), ((9, 24), (16, 4), (16, 7)), ((9, 24), (32, 16), (-4, -4)),
    ((5, 6, 16), (8, 3, 2), (12, 4, -1)), ((3, 4, 5, 16), (8, 2, 3, 2), (-4, -1, -1, 2)),
    ((2, 3, 4, 5, 8), (8, 2, 2, 2, 2), (4, 4, 3, -1, 1)), ((2, 3, 4, 5, 8), (8, 5, 4, 3, 2),
                                                           (0, 0, 0, 0, 0)),
])
def test_edges(shape: tuple[int, ...], box: tuple[int, ...], corner: tuple[int, ...],
               seed: int | None) -> None:
    """Boxes that hang over every side of a tensor are filled with zeros there."""
    tensor = random_tensor(shape, "f32", 3)
    got, want = load(tensor, "f32", box, corner, seed)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_nan_fill(dtype: str) -> None:
    tensor = random_tensor((5, 16), dtype, 1)
    got, want = load(tensor, dtype, (16, 8), (8, 2), fill="nan")
    assert np.array_equal(got.view(KINDS[dtype])[:128].astype(float),
                          want.view(KINDS[dtype])[:128].astype(float), equal_nan=True)


def test_element_strides_and_padded_rows() -> None:
    tensor = random_tensor((12, 40), "f16", 2)[:, :37]
    got, want = load(tensor, "f16", (16, 5), (24, 1), element_strides=(1, 2))
    assert np.array_equal(got, want)


def test_rows_shorter_than_the_swizzle_are_spread() -> None:
    tensor = random_tensor((12, 64), "f16", 2)
    got, want = load(tensor, "f16", (16, 9), (8, 1), swizzle=128)
    assert np.array_equal(got, want)


STORE = """
    mov.u32 %r1, %t;
FILL: shl.b32 %r3, %r1, 2; add.u32 %r4, %r3, %tile; cvt.u64.u32 %rd3, %r3;
    add.u64 %rd3, %rd3, %out; ld.global.b32 %r5, [%rd3]; st.shared.b32 [%r4], %r5;
    add.u32 %r1, %r1, 128; setp.lt.u32 %p1, %r1, 1024; @%p1 bra FILL;
    fence.proxy.async.shared::cta; bar.sync 0;
    @%first {copy};
    @%first cp.async.bulk.commit_group; @%first cp.async.bulk.wait_group{read} 0;"""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("read", ["", ".read"])
@pytest.mark.parametrize("op", ["", "add", "min", "max", "and", "xor"])
def test_stores_and_reductions(op: str, read: str, seed: int | None) -> None:
    """Elements of the box outside of the tensor are left out."""
    tensor = random_tensor((11, 24), "s32", 4)
    tile = np.random.default_rng(1).integers(-100, 100, 1024).astype(np.int32)
    form = f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{op}" if op else (
        "cp.async.bulk.tensor.2d.global.shared::cta")
    kernel = hopper(STORE.format(
        copy=f"{form}.tile.bulk_group [%map, {{12, 5}}], [%tile]", read=read))
    want = tensor.copy()
    apply = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
             "xor": np.bitwise_xor}  # fmt: skip
    box = tile[: 8 * 16].reshape(8, 16)[:6, :12]
    old = want[5:, 12:]
    want[5:, 12:] = apply[op](old, box) if op else box
    sim.run(kernel, "k", [tile, packed(tensor, "s32", (16, 8))], ONE, shared_bytes=2 * SPACE,
            seed=seed)
    assert np.array_equal(tensor, want)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_float_reductions(dtype: str, seed: int | None) -> None:
    rng = np.random.default_rng(5)
    tensor = rng.standard_normal((8, 16)).astype(KINDS[dtype])
    tile = np.zeros(1024, np.float32)
    values = rng.standard_normal(128).astype(KINDS[dtype])
    tile.view(np.uint8)[: values.nbytes] = values.view(np.uint8)
    want = tensor + values.reshape(8, 16)
    kernel = hopper(STORE.format(copy="cp.reduce.async.bulk.tensor.2d.global.shared::cta.add."
                                      "bulk_group [%map, {0, 0}], [%tile]", read=""))
    sim.run(kernel, "k", [tile, packed(tensor, dtype, (16, 8))], ONE, shared_bytes=2 * SPACE,
            seed=seed)
    assert np.array_equal(tensor.astype(float), want.astype(float))


@pytest.mark.parametrize("seed", SEEDS)
def test_plain_bulk_copies(seed: int | None) -> None:
    """There and back by rows of bytes, and a reduction on the way."""
    source = np.random.default_rng(2).integers(0, 1 << 30, 64).astype(np.uint32)
    out = np.full(64, 5, np.uint32)
    kernel = hopper("""
    ld.param.u64 %rd1, [p1];
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 256;
    @%first cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
        [%tile], [%rd1], 128, [%bar];
    @%first cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint
        [%tile+128], [%rd1+128], 128, [%bar], %rd1;
    """ + WAIT.format(bar="%bar", parity=0) + """
    @%first cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%out], [%tile], 64;
    @%first cp.async.bulk.global.shared::cta.bulk_group [%out+64], [%tile+64], 192;
    @%first cp.async.bulk.prefetch.L2.global [%rd1], 64;
    @%first cp.async.bulk.commit_group; @%first cp.async.bulk.wait_group.read 0;""", "u64 u64")
    sim.run(kernel, "k", [out, source], ONE, shared_bytes=SPACE, seed=seed)
    assert np.array_equal(out, np.concatenate([source[:16] + 5, source[16:]]))


def test_without_a_wait_the_box_is_not_there() -> None:
    """Nobody waits: without a seed the load comes as late as can be, with some it is early."""
    tensor = random_tensor((8, 32), "f32", 1)
    late = load_kernel(2, 1024, (0, 0), wait="")
    seen = []
    for seed in (None, *range(12)):
        out = np.zeros(SPACE, np.uint8)
        try:
            sim.run(late, "k", [out, packed(tensor, "f32", (32, 8))], ONE,
                    shared_bytes=2 * SPACE, seed=seed)
        except SimError as error:
            assert "CTA ends while this operation may still use its shared memory" in str(error)
            seen.append(False)
        else:
            seen.append(True)
    assert not seen[0] and any(seen)


def test_wait_group_read_lets_the_source_be_reused_but_no_wait_does_not() -> None:
    """The tile is overwritten after the wait, or before: only then does it spoil the result."""
    tensor = np.zeros((8, 16), np.int32)
    tile = np.arange(1024).astype(np.int32)
    copy = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%map, {0, 0}], [%tile]"
    spoil = "\n@%first st.shared.b32 [%tile], 77; @%first cp.async.bulk.wait_group 0;"
    for count, first in (("0", 0), ("1", 77)):
        kernel = hopper(STORE.format(copy=copy, read=".read").replace(".read 0;",
                                                                      f".read {count};") + spoil)
        sim.run(kernel, "k", [tile, packed(tensor, "s32", (16, 8))], ONE, shared_bytes=2 * SPACE)
        assert tensor[0, 0] == first and np.array_equal(tensor.reshape(-1)[1:], np.arange(1, 128))


FINE = {"array": np.zeros((16, 64), np.float16), "dtype": "f16", "shape": (64, 16),
        "strides": (128,), "box": (64, 8)}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), [
    ({"dtype": "f8"}, "a type must be one of"),
    ({"strides": (130,)}, "multiples of 16 bytes"),
    ({"strides": ()}, "a stride for every dimension but the innermost"),
    ({"box": (257, 1)}, "1 to 256 elements"),
    ({"box": (4, 1)}, "8 bytes, which must be a multiple of 16"),
    ({"swizzle": 64}, "128 bytes, more than a swizzle of 64 spans"),
    ({"swizzle": 16}, "must be 0, 32, 64 or 128"),
    ({"element_strides": (1, 9)}, "element strides lie in 1 to 8"),
    ({"dtype": "u16", "fill": "nan"}, "for float types"),
    ({"shape": (64, 16, 1)}, "stride for every"),
    ({"shape": (0, 16)}, "extents lie in 1"),
])
def test_maps_that_the_driver_would_refuse(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SimError, match=message):
        TensorMap(**(FINE | change))


@pytest.mark.parametrize(("text", "message"), [
    ("[%tile+64], [%map, {0, 0}], [%bar]", "misaligned shared address .* multiple of 128"),
    ("[%tile], [%map, {0, 0}], [%bar+4]", "misaligned shared address .* multiple of 8"),
    ("[%tile], [%map, {0, 0}], [%bar+8]", "never initialised"),
    ("[%tile+32768], [%map, {0, 0}], [%bar]", "out-of-bounds store to shared"),
    ("[%tile], [%map+64, {0, 0}], [%bar]", "does not hold a tensor map"),
    ("[%tile], [%map+4, {0, 0}], [%bar]", "must be a multiple of 64"),
    ("[%tile], [%map, {0, 0, 0}], [%bar]", "3 coordinates of 2 dimensions"),
])
def test_operand_errors(text: str, message: str) -> None:
    form = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
    kernel = hopper(f"@%first {form} {text};")
    with pytest.raises(SimError, match=message) as caught:
        sim.run(kernel, "k", [np.zeros(4), TensorMap(**FINE)], ONE, shared_bytes=SPACE)
    assert caught.value.ptx_line == 1 + kernel[: kernel.index(form) - 8].count("\n")


def test_launch_errors() -> None:
    kernel = hopper("")
    with pytest.raises(SimError, match="over 2048 bytes, but argument 1 has 1024"):
        small = TensorMap(**(FINE | {"array": np.zeros(512, np.int16)}))
        sim.run(kernel, "k", [np.zeros(4), small], ONE, shared_bytes=SPACE)
    with pytest.raises(SimError, match="needs a parameter of 128 bytes"):
        sim.run(kernel, "k", [TensorMap(**FINE), TensorMap(**FINE)], ONE, shared_bytes=SPACE)
    store = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%map, {0, 0}], [%tile];"
    frozen = np.zeros((16, 64), np.float16)
    frozen.flags.writeable = False
    with pytest.raises(SimError, match="whose array is read-only"):
        sim.run(hopper("@%first " + store), "k",
                [np.zeros(4), TensorMap(**(FINE | {"array": frozen}))], ONE, shared_bytes=SPACE)
    added = store.replace("cp.", "cp.reduce.").replace("shared::cta", "shared::cta.add.tile")
    wide = TensorMap(np.zeros((16, 64)), "f64", (64, 16), (512,), (16, 1))
    with pytest.raises(SimError, match="a bulk tensor reduction add of .f64"):
        sim.run(hopper("@%first " + added), "k", [np.zeros(4), wide], ONE, shared_bytes=SPACE)


@pytest.mark.parametrize("form", [
    "cp.async.bulk.tensor.2d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes",
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes",
    "cp.async.bulk.global.shared::cta.bulk_group.cp_mask",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f8",
])
def test_unsupported_forms(form: str) -> None:
    kernel = hopper(f"@%first {form} [%tile], [%map, {{0, 0}}], [%bar];")
    (error,) = sim.unsupported(kernel)
    assert "does not know" in str(error) and error.ptx_line


def test_counts() -> None:
    """A box of 19 rows of 48 bytes, 4 rows of it outside; rows of 96 bytes from byte 16 on.

    They have 15 x 48 bytes and, since 96 is 3 sectors, 2 sectors each; from byte 688 to 2079 they
    leave none of the lines 5 to 16 of 128 bytes out.
    """
    tensor, out = random_tensor((22, 24), "f32", 1), np.zeros(SPACE, np.uint8)
    counts = sim.run(load_kernel(2, 19 * 48, (4, 7)), "k", [out, packed(tensor, "f32", (12, 19))],
                     ONE, shared_bytes=2 * SPACE, count=True)
    assert counts is not None
    (row,) = [r for r in counts.rows if "cp.async.bulk.tensor" in r.text]
    assert row.memory["global", "copy"].tolist() == [1, 30, 12, 0, 0, 15 * 48]
    assert row.memory["shared", "copy"].tolist() == [1, 0, 0, 0, 0, 19 * 48]
