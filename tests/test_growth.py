"""Work grows with the size of a kernel, not with its square; what is too large for its threads is
refused before code is generated. Calls, ops and registers are counted; nothing is timed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from benchmarks import growth
from tilec.codegen.resources import MOST_ELEMENTS, MOST_REGISTERS
from tilec.compiler import stages
from tilec.errors import OutOfResources
from tilec.ir import ops
from tilec.ir.parser import parse
from tilec.ir.scratch import tile_fragment
from tilec.ir.types import Tensor
from tilec.runtime.aot import specialized

SIZES = {"straight line": (40, 160), "loads, one sum": (40, 160),
         "load and store pairs": (30, 120), "static_range": (30, 120),
         "loop_unroll_factor": (16, 64), "if/else, deep": (8, 32), "ifs in a row": (30, 120),
         "nested loops": (5, 19)}
# Going through nested regions passes an op through the generators of all those around it.
DEEP, EXPONENT, DEEP_EXPONENT = ("if/else, deep", "nested loops"), 1.25, 1.75
SIGNATURE = {"x": "*fp32:16", "y": "*fp32:16"}


def calls(run: Callable[[], Any]) -> int:
    """How many Python functions `run` calls."""
    count, old = 0, sys.getprofile()

    def see(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(see)
    try:
        run()
    finally:
        sys.setprofile(old)
    return count


@pytest.mark.parametrize("name", SIZES)
def test_work_is_close_to_linear(name: str, tmp_path: Path) -> None:
    def compile_all(size: int) -> None:
        made = growth.kernel(name, size, tmp_path)
        *_, last = stages(made.build(), made.target, stop_at="llir")
        texts.append(last.text)

    small, large = SIZES[name]
    texts: list[str] = []
    compile_all(small)  # caches fill
    before, after = (calls(lambda size=size: compile_all(size)) for size in (small, large))
    factor = large / small
    exponent = DEEP_EXPONENT if name in DEEP else EXPONENT
    assert after < before * factor ** exponent, f"{before} calls for {small}, {after} for {large}"
    assert len(texts[2]) < 1.2 * factor * len(texts[1])


def test_addresses_are_apart_in_llvm(tmp_path: Path) -> None:
    """Each has a base of its own, so that strength reduction has none to compare it with."""
    text = growth.kernel("load and store pairs", 20, tmp_path).asm["llir"]
    bases = [line.split("ptr addrspace(1) ")[1].split(",")[0] for line in text.splitlines()
             if "getelementptr i32, ptr addrspace(1)" in line and ", i64 %" in line]
    laundered = {line.split(" = ")[0].strip() for line in text.splitlines() if "launder" in line}
    assert len(bases) == len(set(bases)) >= 40 and set(bases) <= laundered


@tilec.jit
def wrapping(x, y, n: tl.int16):
    i = tl.arange(0, 128)
    x += 65536
    v = tl.load(x + n + i)
    v += tl.load(x + 2 * n + i)
    v += tl.load(x + 3 * n + i)
    tl.store(y + i, v)


@pytest.mark.parametrize("n", [5, 20000, -12345])
def test_offsets_wrap_before_they_are_widened(n: int) -> None:
    x = np.random.default_rng(n + 20000).integers(0, 1 << 20, 1 << 17).astype(np.float32)
    made = tilec.compile(wrapping, {**SIGNATURE, "n": "i16"}, target="sm_90a")
    starts = [65536 + int(np.array(k * n).astype(np.int16)) for k in (1, 2, 3)]
    want = sum(x[at:at + 128] for at in starts)
    for level in ("tile", "ptx"):
        y = np.full(128, np.nan, np.float32)
        made.run({"x": x, "y": y, "n": n}, 1, level=level)
        assert np.array_equal(y, want), level


def test_loads_come_together_as_far_as_there_are_registers(tmp_path: Path) -> None:
    module = parse(growth.kernel("loads, one sum", 100, tmp_path).asm["gpu"])
    waiting, most = set(), 0
    for op in module.walk():
        waiting -= set(op.operands)
        waiting |= set(op.results) if isinstance(op, ops.Load) else set()
        most = max(most, len(waiting))
    assert 25 < most <= 255 // 8  # each is of 8 registers


@tilec.jit
def product(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(y + at, tl.dot(tl.load(x + at), tl.load(x + at + N)))


@tilec.jit
def one_more(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i) + 1.0)


@pytest.mark.parametrize("fn, size, what, required, limit", [
    (product, 256, "registers a thread", 1024, MOST_REGISTERS),
    (one_more, 1 << 20, "elements of a tile a thread", 8192, MOST_ELEMENTS),
    (one_more, 1 << 17, "registers a thread", 1024, MOST_REGISTERS)])
def test_tiles_far_too_large_are_refused(fn: Any, size: int, what: str, required: int, limit: int,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any) -> None:
        raise AssertionError("code is generated")

    monkeypatch.setattr("tilec.compiler.to_llir", never)
    with pytest.raises(OutOfResources) as caught:
        _ = specialized(fn, SIGNATURE, {"N": size}, "sm_90a").asm["ptx"]
    error = caught.value
    assert (error.resource, error.limit) == (what, limit)
    assert error.required >= required > limit and "num_warps" in error.advice
    assert error.loc.file == __file__ and f"f32[{size}" in error.message and "^" in str(error)


def test_what_only_spills_is_compiled() -> None:
    assert specialized(one_more, SIGNATURE, {"N": 1 << 16}, "sm_90a").asm["ptx"]


def broadcasts(seed: int) -> tuple[str, tuple[int, ...]]:
    """A kernel that adds tiles, each with some extents of 1, and takes a remainder."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(2, 4))
    extents = [1, 1, 8, 32, 64] if rank == 3 else [1, 2, 64, 256, 512]
    shape = tuple(map(int, rng.choice(extents, rank)))
    while np.prod(shape) > 16384:
        shape = tuple(map(int, rng.choice(extents, rank)))
    lines = []
    for d, n in enumerate(shape):
        places = ", ".join(":" if k == d else "None" for k in range(rank))
        lines.append(f"    i{d} = tl.arange(0, {n})[{places}]")
    flat = " + ".join(f"i{d} * {int(np.prod(shape[d + 1:]))}" for d in range(rank))
    for t in range(3):
        dims = [d for d in range(rank) if rng.random() < 0.5]
        ones = " + ".join([f"tl.zeros([{', '.join(['1'] * rank)}], tl.int32)",
                           *(f"i{d}" for d in dims)])
        lines.append(f"    v{t} = tl.load(x + ({ones})) + {t}.0")
    lines += [f"    j = (tl.program_id(0) + {flat}) % n",
              "    tl.store(y + (v0.to(tl.int32) + j), v1 + v2)"]
    head = "import tilec\nimport tilec.language as tl\n\n\n@tilec.jit\ndef kernel(x, y, n):\n"
    return head + "\n".join(lines) + "\n", shape


def load(source: str, folder: Path) -> tilec.JITFunction:
    """The kernel of a module's text."""
    path = folder / "broadcasts.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


@pytest.mark.parametrize("warps", [1, 4, 8])
def test_no_thread_holds_what_its_share_is_not(warps: int, tmp_path: Path) -> None:
    """Of any tile of a kernel of broadcasts a thread holds but little more than its share of the
    largest: that of rows and columns, as slices, is that of what they are repeated to."""
    for seed in range(25):
        source, shape = broadcasts(seed * 10 + warps)
        made = specialized(load(source, tmp_path), {**SIGNATURE, "n": "i32"}, {},
                           "sm_90a", num_warps=warps)
        share = -(-int(np.prod(shape)) // (32 * warps))
        for op in parse(made.asm["gpu"]).walk():
            for value in op.results:
                if isinstance(t := value.type, Tensor):
                    held = tile_fragment(t).num_registers
                    assert held <= 2 * max(share, 4), f"seed {seed}: {t} of {shape}\n{source}"


@tilec.jit
def of_an_index_put(out, val, s, B: tl.constexpr):
    row = tl.program_id(1) + tl.arange(0, 1)[:, None]
    j = tl.load(val + row).to(tl.int32)
    d = (tl.program_id(0) * B + tl.arange(0, B)[None, :]) % s
    tl.store(out + j * s + d, 1.0)


def test_columns_are_shared_out_beside_a_row_of_one() -> None:
    made = specialized(of_an_index_put, {"out": "*fp32", "val": "*fp32", "s": "i32"}, {"B": 2048},
                       "sm_90a")
    store = next(op for op in parse(made.asm["gpu"]).walk() if isinstance(op, ops.Store))
    assert tile_fragment(store.ptr.type).num_registers == 2048 // 128


@tilec.jit
def gathered(o, a, b, at, K, B: tl.constexpr):
    n, acc = tl.arange(0, B), tl.zeros([B, B], tl.float32)
    for k in range(0, K, B):
        i = tl.load(at + k + n)
        x = tl.load(a + i[None, :] * B + n[:, None])
        y = tl.load(b + i[:, None] * B + n[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(o + n[:, None] * B + n[None, :], acc)


GATHERED = {"o": "*fp32:16", "a": "*bf16:16", "b": "*bf16:16", "at": "*i64:16", "K": "i32:16"}


def test_loads_that_wait_for_loads_share_the_stages(rng: np.random.Generator) -> None:
    shared = [specialized(gathered, GATHERED, {"B": 128}, "sm_90a", num_stages=n).shared
              for n in (3, 5)]
    assert shared[0] < shared[1] <= 232448
    B, K = 32, 320
    a, b = (rng.integers(-8, 8, (K, B)).astype(ml_dtypes.bfloat16) for _ in range(2))
    at = rng.permutation(K).astype(np.int64)
    want = a[at].astype(np.float64).T @ b[at].astype(np.float64)
    for n in (2, 4, 5, 7):
        made = specialized(gathered, GATHERED, {"B": B}, "sm_90a", num_stages=n)
        for level in ("lowered", "ptx"):
            o = np.full((B, B), np.nan, np.float32)
            made.run({"o": o, "a": a, "b": b, "at": at, "K": K}, 1, level=level)
            assert np.array_equal(o, want), (n, level)


def test_more_blocks_than_an_mbarrier_counts(tmp_path: Path) -> None:
    lines = [line for d in range(16) for line in (
        f"    a = tl.load(x + {d} * 65536 + k * 128 + i[:, None] * 4096 + i[None, :])",
        f"    b = tl.load(x + {d} * 65536 + k * 524288 + i[:, None] * 4096 + i[None, :])",
        "    acc = tl.dot(a, b, acc)")]
    body = ["i = tl.arange(0, 128)", "acc = tl.zeros((128, 128), tl.float32)", "for k in range(n):",
            *lines, "tl.store(y + i[:, None] * 128 + i[None, :], acc)"]
    made = growth.written(body, {**SIGNATURE, "x": "*bf16:16", "n": "i32"}, tmp_path / "many.py")
    with pytest.raises(OutOfResources, match="shared memory") as caught:
        _ = made.asm["gpu"]
    assert caught.value.message.count("bf16[3, 128, 128]") == 32
