"""Warp roles and clusters in random programs: whole kernels with random parameters."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tests.fuzz.generate import Generator, Kinds
from tests.fuzz.memory_ops import matrix_product, read_block, write_block, write_elements
from tests.fuzz.numerics import NUMPY, Reject
from tests.fuzz.program import Machine, Record, Value, op, value

HANDED = '''@tilec.jit
def produce(x, n, rounds, buffer, full, empty):
    B: tl.constexpr = buffer.shape[0]
    for i in range(rounds):
        at = i * B + tl.arange(0, B)
        empty.wait(i & 1 ^ 1)
        buffer.store(tl.load(x + at, mask=at < n, other=0) * 2)
        tlg.warpgroup_barrier()
        full.arrive()


@tilec.jit
def consume(y, total, n, rounds, buffer, full, empty):
    B: tl.constexpr = buffer.shape[0]
    acc = tl.zeros((), y.dtype.element_ty)
    for i in range(rounds):
        at = i * B + tl.arange(0, B)
        full.wait(i & 1)
        part = buffer.load()
        tlg.warpgroup_barrier()
        empty.arrive()
        tl.store(y + at, part, mask=at < n)
        acc += tl.sum(part, 0)
    tl.store(total, acc)


'''
HAND = """{tag} = tlg.alloc_shared(({block},), {y}.dtype.element_ty)
{tag}_full, {tag}_empty = tlg.mbarrier({arrive}), tlg.mbarrier({release})
tlg.barrier()
{tag}_rounds = tl.cdiv({n}, {block})
tlg.warp_specialize([(produce, ({x}, {n}, {tag}_rounds, {tag}, {tag}_full, {tag}_empty)),
                     (consume, ({y}, {total}, {n}, {tag}_rounds, {tag}, {tag}_full, {tag}_empty))],
                    num_warps={warps})"""
NAMED = HANDED.replace("produce", "produce_named").replace("consume", "consume_named").replace(
    "        empty.wait(i & 1 ^ 1)\n", "        if i > 0:\n            empty.sync()\n").replace(
    "full.wait(i & 1)", "full.sync()").replace("        tlg.warpgroup_barrier()\n", "")
HAND_NAMED = HAND.replace("tlg.mbarrier({arrive})", "tlg.named_barrier({both})").replace(
    "tlg.mbarrier({release})", "tlg.named_barrier({both})").replace("tlg.barrier()\n", "").replace(
    "(produce,", "(produce_named,").replace("(consume,", "(consume_named,")


def _handed(m: Machine, x: Any, y: Any, total: Any, n: Any, **rest: Any) -> None:
    count, t = int(n.x), y.dtype[1:]
    doubled = m.memory.arrays[int(x.owner)][:count] * NUMPY[t].type(2)
    write_elements(m, int(y.owner), np.arange(count), doubled)
    write_elements(m, int(total.owner), np.arange(1), doubled.sum(dtype=NUMPY[t]).reshape(1))


for _name, _text, _prelude in (("hand_over", HAND, HANDED), ("hand_over_named", HAND_NAMED, NAMED)):
    op(_name, lambda x, y, total, n, text=_text, **rest: text.format(
        x=x, y=y, total=total, n=n, **rest), _prelude)(_handed)


def single_program(g: Generator) -> None:
    if g.program.body:
        raise Reject("a whole kernel")
    g.program.grid = (1, 1)
    g.machines = g.machines[:1]
    g.machines[0].grid = (1, 1, 1)
    g.size = 0


def hand_over(g: Generator) -> None:
    """One role fills a buffer, another one empties it."""
    single_program(g)
    rng, p = g.rng, g.program
    warps = rng.choice([(1, 1), (2, 1), (1, 2), (4, 2), (1, 4), (4, 8)])
    p.target, p.options["num_warps"] = "sm_90a", sum(warps)
    t, n = rng.choice(["float32", "int32", "float16"]), rng.choice([1, 100, 300, 613])
    x = g.argument("whole", t, n, again=0.0)
    y = g.argument("poison", t, n, again=0.0)
    total = g.argument("poison", t, 1, again=0.0)
    number = g.argument("number", "int32", 1, again=0.0, number=n)
    g.do(rng.choice(["hand_over", "hand_over_named"]), x, y, total, number, tag=g.name("s"),
         block=rng.choice([64, 128]), warps=warps, both=sum(warps),
         arrive=max(1, warps[0] // 4), release=max(1, warps[1] // 4))


ROLES = '''@tilec.jit
def fetch(a, b, i, j, steps, a_ring, b_ring, full, empty):
    STAGES: tl.constexpr = full.stages
    BK: tl.constexpr = a.block_shape[1]
    if tlg.elect():
        for s in range(steps):
            slot = s % STAGES
            empty[slot].wait(s // STAGES & 1 ^ 1)
            full[slot].expect(a_ring.nbytes + b_ring.nbytes)
            tlg.tma.load(a, [i, s * BK], a_ring[slot], full[slot])
            tlg.tma.load(b, [s * BK, j], b_ring[slot], full[slot])


@tilec.jit
def multiply(steps, a_ring, b_ring, full, empty, out, done):
    STAGES: tl.constexpr = full.stages
    acc = tl.zeros((out.shape[0], out.shape[1]), tl.float32)
    for s in range(steps):
        slot = s % STAGES
        full[slot].wait(s // STAGES & 1)
        acc = tlg.wgmma(a_ring[slot], b_ring[slot], acc, use_acc=s > 0)
        acc = tlg.wgmma_wait(0, acc)
        empty[slot].arrive()
    out.store(acc)
    tlg.fence_async()
    tlg.warpgroup_barrier()
    done.arrive()


@tilec.jit
def give(c, i, j, out, done):
    done.wait(0)
    tlg.tma.store(c, [i, j], out)
    tlg.tma.store_commit()
    tlg.tma.store_wait(read=True)


'''
PRODUCT = """{tag}_i, {tag}_j = tl.program_id(0) * {m}, tl.program_id(1) * {n}
{tag}_a = tlg.alloc_shared({a}.block_shape, {a}.dtype, stages={stages})
{tag}_b = tlg.alloc_shared({b}.block_shape, {b}.dtype, stages={stages})
{tag}_out = tlg.alloc_shared(({m}, {n}), {c}.dtype)
{tag}_full = tlg.mbarrier(stages={stages})
{tag}_empty = tlg.mbarrier({groups}, stages={stages})
{tag}_done = tlg.mbarrier({groups})
tlg.barrier()
tlg.warp_specialize([
    (multiply, ({steps}, {tag}_a, {tag}_b, {tag}_full, {tag}_empty, {tag}_out, {tag}_done)),
    (fetch, ({a}, {b}, {tag}_i, {tag}_j, {steps}, {tag}_a, {tag}_b, {tag}_full, {tag}_empty)),
    (give, ({c}, {tag}_i, {tag}_j, {tag}_out, {tag}_done))], num_warps={warps}, regs={regs})"""


@op("roles_product", lambda a, b, c, **rest: PRODUCT.format(a=a, b=b, c=c, **rest), ROLES)
def _(machine: Machine, a: Any, b: Any, c: Any, m: int, n: int, steps: int, **rest: Any) -> None:
    if not all(isinstance(x, Record) for x in (a, b, c)):
        raise Reject("no descriptors")
    i, j, step = machine.program[0] * m, machine.program[1] * n, a.block[1]
    left = np.concatenate([read_block(machine, a, (i, s * step)).x for s in range(steps)], 1)
    right = np.concatenate([read_block(machine, b, (s * step, j)).x for s in range(steps)], 0)
    out = matrix_product(value(left, a.dtype), value(right, b.dtype), None, "float32")
    write_block(machine, c, out, (i, j), "")


def roles_product(g: Generator) -> None:
    """One role multiplies, one loads, one stores."""
    if g.program.body:
        raise Reject("a whole kernel")
    rng, p = g.rng, g.program
    warps, regs = rng.choice([((4, 1, 1), None), ((8, 2, 3), None), ((4, 4, 4), (240, 24, 24))])
    p.target, p.options["num_warps"], g.size = "sm_90a", sum(warps), 0
    t = rng.choice(["float16", "bfloat16"])
    m, n, step = 16 * warps[0], rng.choice([32, 64]), rng.choice([32, 64])
    rows, columns = p.grid[0] * m - rng.choice([0, 28]), p.grid[1] * n - rng.choice([0, 16])
    length = rng.randint(1, 4) * step - rng.choice([0, 8])

    def described(fill: str, t: str, extents: tuple[int, int], block: tuple[int, int]) -> str:
        return g.argument(fill, t, prod(extents), again=0.0, extents=extents, block=block)

    a = described("whole", t, (rows, length), (m, step))
    b = described("whole", t, (length, columns), (step, n))
    c = described("poison", t, (rows, columns), (m, n))
    g.do("roles_product", a, b, c, tag=g.name("s"), m=m, n=n, steps=-(-length // step),
         stages=rng.choice([2, 3]), groups=warps[0] // 4, warps=warps, regs=regs)


CLUSTER = """{tag} = tlg.alloc_shared(({block},), {x}.dtype.element_ty)
{tag}_at = tl.program_id(0) * {block} + tl.arange(0, {block})
{tag}.store(tl.load({x} + {tag}_at) + tlg.cluster_rank())
tlg.cluster_barrier()
{{out}} = tl.zeros(({block},), {x}.dtype.element_ty)
for {tag}_rank in tl.static_range({size}):
    {{out}} += {tag}.at({tag}_rank).load()
tlg.cluster_barrier()"""


@op("cluster_sum", lambda x, **rest: CLUSTER.format(x=x, **rest))
def _(m: Machine, x: Any, tag: str, block: int, size: int) -> Value:
    t, first = x.dtype[1:], m.program[0] // size * size
    rows = m.memory.arrays[int(x.owner)].reshape(-1, block)[first:first + size]
    added = rows + np.arange(size)[:, None].astype(NUMPY[t])
    return value(added.sum(0, dtype=NUMPY[t]), t)


def cluster_sum(g: Generator) -> None:
    """Programs of a cluster read each other's buffers."""
    rng, p = g.rng, g.program
    if p.body or p.grid not in ((2, 1), (2, 2)):
        raise Reject("no grid of clusters, or not the kernel's beginning")
    p.target, p.options["num_ctas"] = "sm_90a", 2
    block, t = rng.choice([64, 128, 256]), rng.choice(["int32", "float32"])
    x = g.argument("whole", t, 2 * block, again=0.0)
    g.store(g.put("cluster_sum", x, tag=g.name("s"), block=block, size=2))
    g.size = 2


CLUSTERS_AND_ROLES: Kinds = {hand_over: 2, roles_product: 2, cluster_sum: 2}
