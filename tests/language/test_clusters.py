"""Clusters at the explicit level, and kernels that know nothing of them, at every level."""

from __future__ import annotations

import linecache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg
from tests.support.clusters import product, softmax
from tests.support.explicit import LEVELS, everywhere
from tilec import knobs
from tilec.errors import CompilationError, InterpreterError, LaunchError, TilecError

describe = tilec.TensorDescriptor.from_tensor


# -- what they do ---------------------------------------------------------------------------------

@tilec.jit
def places(out_ptr):
    x, y = tl.program_id(0), tl.program_id(1)
    at = out_ptr + (y * tl.num_programs(0) + x) * 2
    tl.store(at, tlg.cluster_rank())
    tl.store(at + 1, tlg.cluster_size() + x)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_ranks_count_along_axis_0(size: int) -> None:
    out = np.empty((3, 16, 2), np.int32)
    kernel = places.warmup(out, grid=(16, 3), num_ctas=size)
    x = np.broadcast_to(np.arange(16), (3, 16))
    everywhere(kernel, [out], (16, 3), out, np.stack([x % size, size + x], -1))
    assert (f".reqnctapercluster {size}, 1, 1" in kernel.asm["ptx"]) == (size > 1)
    assert kernel.num_ctas == size
    assert (kernel.hash == places.warmup(out, grid=(16, 3)).hash) == (size == 1)


@pytest.mark.parametrize(("size", "columns", "dtype"), [
    (1, 100, np.float32), (2, 333, np.float32), (4, 1024, np.float16), (8, 900, np.float32),
    (4, 150, ml_dtypes.bfloat16)])  # of the last two, the last parts are empty
@pytest.mark.sample(2)
def test_softmax(size: int, columns: int, dtype: Any, rng: np.random.Generator) -> None:
    x = (4 * rng.standard_normal((3, columns))).astype(dtype)
    y = np.empty_like(x)
    kernel = softmax.warmup(x, y, columns, BLOCK=128 if size == 8 else 256, num_ctas=size,
                            grid=(3 * size,))
    e = np.exp(x.astype(np.float64) - x.astype(np.float64).max(1, keepdims=True))
    want, digits = e / e.sum(1, keepdims=True), {2: 2.0**-8, 4: 2.0**-20}[x.itemsize]
    for level in LEVELS:
        for seed in range(2):
            y[...] = np.nan
            kernel.run([x, y, columns], 3 * size, level=level, seed=seed)
            np.testing.assert_allclose(y.astype(np.float64), want, digits, 1e-7, err_msg=level)
    assert ("ld.shared::cluster" in kernel.asm["ptx"]) and "mapa" in kernel.asm["ptx"]


@pytest.mark.parametrize(("size", "num_warps", "stages"), [(1, 4, 3), (2, 8, 2), (4, 4, 3)])
def test_product_with_blocks_for_all(size: int, num_warps: int, stages: int,
                                     rng: np.random.Generator) -> None:
    bm, bn, bk = 16 * num_warps, 64, 64
    m, n, k = 4 * bm - 30, 104, 264
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((m, k), (k, n)))
    c = np.empty((m, n), np.float16)
    args = [describe(a, (bm, bk)), describe(b, (bk, bn)), describe(c, (bm, bn))]
    kernel = product.warmup(*args, STAGES=stages, grid=(4, 2), target="sm_90a",
                            num_warps=num_warps, num_ctas=size)
    everywhere(kernel, args, (4, 2), c, a.astype(np.float32) @ b.astype(np.float32))
    ptx = kernel.asm["ptx"]
    assert "complete_tx::bytes.multicast::cluster.L2::cache_hint" in ptx
    assert "complete_tx::bytes.L2::cache_hint" in ptx and "createpolicy" in ptx
    # With .release.cluster, each arrival would wait for all stores of its thread.
    assert "mbarrier.arrive.shared::cluster.b64" in ptx and ".release.cluster.shared" not in ptx


@tilec.jit
def plain(a_ptr, b_ptr, c_ptr, k, BLOCK: tl.constexpr):
    """c = a @ b of 64 rows a program, with what the compiler does by itself."""
    rows, columns = tl.program_id(0) * 64 + tl.arange(0, 64), tl.arange(0, 64)
    acc = tl.zeros((64, 64), tl.float32)
    for i in range(0, k, BLOCK):
        inner = i + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + rows[:, None] * k + inner[None, :], mask=inner[None, :] < k, other=0.0)
        b = tl.load(b_ptr + inner[:, None] * 64 + columns[None, :], mask=inner[:, None] < k,
                    other=0.0)
        acc = tl.dot(a, b, acc)
    total = tl.sum(acc, 1)
    tl.store(c_ptr + rows[:, None] * 64 + columns[None, :], acc - total[:, None])


@pytest.mark.parametrize("size", [2, 4])
def test_programs_stay_programs(size: int, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((256, 80), (80, 64)))
    c, alone = np.empty((256, 64), np.float32), np.empty((256, 64), np.float32)
    product = a.astype(np.float64) @ b.astype(np.float64)
    want = product - product.sum(1, keepdims=True)
    kernels = [plain.specialize((a, b, c, 80), {"BLOCK": 32, "target": "sm_90a", "num_ctas": n})[0]
               for n in (1, size)]
    for level in LEVELS:
        for kernel, out in zip(kernels, (alone, c), strict=True):
            out[...] = np.nan
            kernel.run([a, b, out, 80], 4, level=level)
        np.testing.assert_array_equal(c, alone, level)
        np.testing.assert_allclose(c, want, 1e-3, 1e-2, err_msg=level)


@tilec.jit
def loads_beside(a, b, c):
    """c = a @ b of 64 rows a program; with a warp that only loads, a program has 160 threads."""
    i = tl.program_id(0) * 64
    acc = tl.zeros((64, 64), tl.float32)
    for k in tl.range(0, a.shape[1], 64, warp_specialize=True):
        acc = tl.dot(a.load([i, k]), b.load([k, 0]), acc)
    c.store([i, 0], acc)


def test_programs_of_no_whole_warpgroups(rng: np.random.Generator) -> None:
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((256, 208), (208, 64)))
    c = np.empty((256, 64), np.float32)
    args = [describe(x, (64, 64)) for x in (a, b, c)]
    kernel = loads_beside.warmup(*args, grid=(4,), target="sm_90a", num_warps=4, num_ctas=2)
    assert kernel.threads == 160 and "wgmma" in kernel.asm["ptx"]
    everywhere(kernel, args, 4, c, a.astype(np.float32) @ b.astype(np.float32))


# -- what is missing ------------------------------------------------------------------------------

def kernel_of(body: str, name: str) -> Any:
    """A kernel of x_ptr and y_ptr with this body."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    text, file = f"@tilec.jit\ndef k(x_ptr, y_ptr):\n{lines}", f"<cluster {name}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    names: dict[str, Any] = {"tilec": tilec, "tl": tl, "tlg": tlg}
    exec(compile(text, file, "exec"), names)
    return names["k"]


# Programs of a cluster of two hand each other 256 values.
RIGHT = """
rank, at = tlg.cluster_rank(), tl.arange(0, 256)
part = tlg.alloc_shared((256,), tl.float32)
part.store(tl.load(x_ptr + tl.program_id(0) * 256 + at))
tlg.cluster_barrier()
got = part.at(1 - rank).load()
tlg.cluster_barrier()
tl.store(y_ptr + tl.program_id(0) * 256 + at, got)
"""
MEET = "tlg.cluster_barrier()\n"
# What is wrong, the error of the interpreter, that of the simulator (None: it may not see it).
WRONG: dict[str, tuple[str, str, str | None]] = {
    "no barrier before": (RIGHT.replace(MEET, "", 1), "nothing says that it has begun", "race"),
    "a barrier of its own": (RIGHT.replace(MEET, "tlg.barrier()\n", 1),
                             "nothing says that it has begun", "race"),
    "no barrier after": (RIGHT.replace(f"load()\n{MEET}", "load()\n"),
                         "which has ended|ends, and with it its shared memory",
                         "which has ended|its CTA ends"),
    "stores again": (RIGHT.replace("load()\n", "load()\npart.store(got)\n"),
                     "and no cluster barrier or mbarrier orders the two", "race"),
    "stores after the barrier": (
        RIGHT.replace("part.store", f"{MEET}part.store").replace(f"{MEET}got", "got"),
        "and no cluster barrier or mbarrier orders the two", "race"),
    "nobody has written": (
        RIGHT.replace("part.store(tl.load(x_ptr + tl.program_id(0) * 256 + at))\n", ""),
        "shared memory that nobody wrote, read at .*:6", "uninitialised"),
    "reads of one that has ended": (f"bar = tlg.mbarrier()\n{RIGHT}".replace("got =", """
if rank == 1:
    bar.arrive(rank=0)
    return
bar.wait(0)
got =""".lstrip()), "which has ended|ends, and with it its shared memory",
                                    "which has ended|its CTA ends"),
    "beyond the cluster": (RIGHT.replace("1 - rank", "2 - rank"),
                           "the rank is 2, the cluster has 2 programs", "mapa to CTA 2"),
    "one comes once more, and waits for itself alone": (
        RIGHT.replace("got =", f"if rank == 0:\n    {MEET}got ="),
        "and with it its shared memory|which has ended", "which has ended|its CTA ends"),
    "each waits for the other's arrival": ("""
bar = tlg.mbarrier()
tlg.cluster_barrier()
bar.wait(0)
bar.arrive(rank=1 - tlg.cluster_rank())
tlg.cluster_barrier()
""", r"\([02], 0, 0\) at .*:5: this phase of the mbarrier lacks 1 arrivals(.|\n)*\([13], 0, 0\)",
                                           "deadlock"),
    "stores handed over by an mbarrier": (
        f"bar = tlg.mbarrier()\n{RIGHT}".replace("part.store", f"{MEET}part.store").replace(
            f"{MEET}got", "tlg.barrier()\nbar.arrive(rank=1 - rank)\nbar.wait(0)\ngot"),
        "and no cluster barrier or mbarrier orders the two", None),
    "leaves an arrival behind": ("""
bar = tlg.mbarrier()
tlg.cluster_barrier()
bar.arrive(rank=1 - tlg.cluster_rank())
""", "ends, and with it its shared memory|which has ended", "which has ended|its CTA ends"),
}


def handed_over(body: str, name: str, level: str, seed: int) -> np.ndarray:
    """What a kernel of two clusters of two programs makes of 0, 1, 2, ..."""
    x, y = np.arange(1024, dtype=np.float32), np.full(1024, np.nan, np.float32)
    kernel, _ = kernel_of(body, name).specialize((x, y), {"num_ctas": 2, "target": "sm_90a"})
    with knobs.scope(check=True):
        kernel.run([x, y], 4, level=level, seed=seed)
    return y


@pytest.mark.parametrize("level", LEVELS)
def test_values_handed_over(level: str) -> None:
    want = np.arange(1024, dtype=np.float32).reshape(2, 2, 256)[:, ::-1].reshape(-1)
    for seed in range(3):
        np.testing.assert_array_equal(handed_over(RIGHT, "right", level, seed), want)


@tilec.jit
def turned(x_ptr, y_ptr, M: tl.constexpr, N: tl.constexpr, SHARED: tl.constexpr):
    """Each program writes what the next one of its cluster has read, from one of two buffers."""
    at = tl.program_id(0) * M * N + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    ring = tlg.alloc_shared((M, N), x_ptr.dtype.element_ty, layout=SHARED, stages=2)
    slot = tl.program_id(0) // tlg.cluster_size() % 2
    ring[slot].store(tl.load(x_ptr + at))
    tlg.cluster_barrier()
    tl.store(y_ptr + at, ring[slot].at((tlg.cluster_rank() + 1) % tlg.cluster_size()).load())
    tlg.cluster_barrier()


@pytest.mark.parametrize(("dtype", "shape", "layout"), [
    (np.float16, (64, 64), None), (np.uint8, (16, 96), None), (np.int64, (6, 20), None),
    (np.float32, (32, 32), tlg.Swizzled(4, 1, 8, [1, 0])), (np.bool_, (8, 16), None),
    (ml_dtypes.bfloat16, (48, 32), tlg.Swizzled(8, 2, 4, [0, 1]))], ids=str)
def test_buffers_of_others(dtype: Any, shape: tuple[int, int], layout: Any,
                           rng: np.random.Generator) -> None:
    x = rng.integers(0, 100, (2, 4, *shape)).astype(dtype)
    y = np.empty_like(x)
    kernel, _ = turned.specialize((x, y), {"M": shape[0], "N": shape[1], "SHARED": layout,
                                           "num_ctas": 4, "target": "sm_90"})
    everywhere(kernel, [x, y], 8, y, np.roll(x, -1, 1))


@tilec.jit
def handed_on(flag_ptr, out_ptr):
    """Clusters wait for each other in global memory, the last one first, and meet in themselves."""
    cluster = tl.program_id(0) // tlg.cluster_size()
    part = tlg.alloc_shared((1,), tl.int32)
    tlg.cluster_barrier()
    found = 0
    if tlg.cluster_rank() == 0:
        while found == 0:
            found = tl.atomic_add(flag_ptr + cluster + 1, 0)
    part.store(found)
    tlg.cluster_barrier()
    value = part.at(0).load() + 1
    if tlg.cluster_rank() == 1:
        tl.atomic_add(flag_ptr + cluster + tl.arange(0, 1), value)
    tlg.cluster_barrier()
    tl.store(out_ptr + tl.program_id(0) + tl.arange(0, 1), value)


def test_clusters_that_wait_for_each_other() -> None:
    flags, out = np.zeros(5, np.int32), np.empty(8, np.int32)
    kernel, _ = handed_on.specialize((flags, out), {"num_ctas": 2})
    for level in ("tile", "lowered"):
        flags[:] = 0, 0, 0, 0, 1
        kernel.run([flags, out], 8, level=level, seed=0)
        assert out.tolist() == [5, 5, 4, 4, 3, 3, 2, 2]
    flags[:] = 4, 3, 2, 0, 0
    with pytest.raises(TilecError, match=r"wait for ever(.|\n)*goes round in this loop"):
        kernel.run([flags, out], 8, level="gpu", seed=0)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_missing_is_found(name: str) -> None:
    body, in_interpreter, in_simulator = WRONG[name]
    levels = {"gpu": in_interpreter, "lowered": in_interpreter, "ptx": in_simulator}
    for level, message in levels.items():
        for seed in range(2) if message else ():
            with pytest.raises(TilecError, match=message):
                handed_over(body, name, level, seed)


@tilec.jit
def expects(a, BYTES: tl.constexpr):
    block, bar = tlg.alloc_shared((64, 64), a.dtype), tlg.mbarrier()
    tlg.cluster_barrier()
    bar.expect(BYTES)
    tlg.tma.load(a, [0, 0], block, bar, pred=tlg.cluster_rank() == 0, multicast=3)
    bar.wait(0)
    tlg.cluster_barrier()


@pytest.mark.parametrize(("size", "found"), [
    (4096, "lacks 0 arrivals and 0 bytes, and got 4096 bytes more than it expects"),
    (16384, "lacks 0 arrivals and 8192 bytes")])
def test_bytes_that_do_not_come_out(size: int, found: str) -> None:
    x = np.zeros((64, 64), np.float16)
    kernel = expects.warmup(describe(x, (64, 64)), BYTES=size, num_ctas=2, grid=(2,),
                            target="sm_90a")
    with pytest.raises(InterpreterError, match=rf"{found}\n"):
        kernel.run([describe(x, (64, 64))], 2, level="gpu", seed=0)


@tilec.jit
def meets():
    tlg.cluster_barrier()  # in a role


@tilec.jit
def wrong(a, p_ptr, n, HOW: tl.constexpr):
    """Each way of HOW is one mistake, marked by a comment."""
    block = tlg.alloc_shared((64, 64), tl.float16, stages=2)
    bar = tlg.mbarrier()
    if HOW == "rank":
        block[0].at(2).load()  # rank
    if HOW == "rank of an arrival":
        bar.arrive(rank=-1)  # rank of an arrival
    if HOW == "float":
        block[0].at(1.0)  # float
    if HOW == "array":
        block.at(1)  # array
    if HOW == "mask":
        tlg.tma.load(a, [0, 0], block[0], bar, multicast=4)  # mask
    if HOW == "no mask":
        tlg.tma.load(a, [0, 0], block[0], bar, multicast=0)  # no mask
    if HOW == "policy":
        tlg.tma.load(a, [0, 0], block[0], bar, eviction_policy="never")  # policy
    if HOW == "one thread":
        if tlg.elect():
            tlg.cluster_barrier()  # one thread
    if HOW == "in a role":
        tlg.warp_specialize([(meets, ()), (meets, ())], num_warps=[2, 2])
    if HOW == "one reads":
        if tlg.elect():
            block[0].at(1).load()  # one reads


MISTAKES = {
    "rank": "the rank is 2, the cluster has 2 programs",
    "rank of an arrival": "arrive: the rank is -1",
    "float": "the rank of at",
    "array": r"at: found a fp16\[64, 64\] buffer array of 2, expected one buffer",
    "mask": "multicast is 0b100, the cluster has 2 programs",
    "no mask": "multicast is 0b0",
    "policy": "eviction_policy is 'never', expected one of 'evict_first'",
    "one thread": "all threads of the cluster must come to it",
    "in a role": "tlg.cluster_barrier: stands in a role",
    "one reads": "needs more than one thread",
}


@pytest.mark.parametrize("how", MISTAKES)
def test_mistakes(how: str) -> None:
    x = np.zeros((64, 64), np.float16)
    with pytest.raises(CompilationError, match=MISTAKES[how]) as e:
        wrong.warmup(describe(x, (64, 64)), x, 1, HOW=how, num_ctas=2, grid=(2,), target="sm_90a")
    assert e.value.loc is not None
    line = linecache.getline(e.value.loc.file, e.value.loc.line)
    assert line.rstrip().endswith(f"# {how}")


def test_targets_without_clusters() -> None:
    x = np.zeros(4, np.int32)
    for kernel, options in ((places, {}), (plain_store, {"num_ctas": 2})):
        with pytest.raises(CompilationError, match="needs sm_90"):
            kernel.warmup(x, grid=(2,), target="sm_80", **options)


@tilec.jit
def plain_store(x_ptr):
    tl.store(x_ptr + tl.program_id(0), 1)


def test_grids_of_whole_clusters() -> None:
    x = np.zeros(4, np.int32)
    kernel = plain_store.warmup(x, grid=(2,), num_ctas=2)
    message = "`plain_store` has a grid of 3 programs along axis 0, expected a multiple of num_ctas"
    for level in LEVELS:
        with pytest.raises(LaunchError, match=message):
            kernel.run([x], 3, level=level)
    with pytest.raises(LaunchError, match=message):
        kernel.simulate([x], 3)
    with pytest.raises(LaunchError, match=message):
        plain_store[(3,)](x, num_ctas=2)
    plain_store[(0,)](x, num_ctas=2)
    assert not x.any()
    plain_store[(4,)](x, num_ctas=2)
    assert x.all()
