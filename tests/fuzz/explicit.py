"""The explicit level (`tlg`) in random programs: shared memory, asynchronous copies, mbarriers, TMA
and wgmma, by templates with random parameters. A template is one operation, whose text has several
lines."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tests.fuzz.explicit_roles import CLUSTERS_AND_ROLES
from tests.fuzz.generate import Generator, Kinds
from tests.fuzz.memory_ops import matrix_product, read_block, write_block
from tests.fuzz.numerics import NUMPY, Reject, cast
from tests.fuzz.ops import number
from tests.fuzz.program import Machine, Record, Value, op, value

# -- layouts and buffers --------------------------------------------------------------------------

@op("convert_layout", "tlg.convert_layout({0}, {layout})")
def _(m: Machine, a: Any, layout: str) -> Value:
    return number(a)


def _powers(g: Generator, total: int, rank: int) -> list[int]:
    """Powers of two with this product."""
    out = [1] * rank
    while prod(out) < total:
        out[g.rng.randrange(rank)] *= 2
    return out


def blocked(g: Generator, rank: int) -> str:
    order = g.rng.sample(range(rank), rank)
    return f"tlg.Blocked({_powers(g, g.rng.choice([1, 2, 4]), rank)}, {_powers(g, 32, rank)}, " \
        f"{_powers(g, g.program.options['num_warps'], rank)}, {order})"


def convert(g: Generator) -> None:
    x = g.any(lambda v: 0 < len(v.shape) < 4 and all(n & n - 1 == 0 for n in v.shape))
    g.put("convert_layout", x, layout=blocked(g, len(g.value(x).shape)))


@op("through_shared", lambda x, tag, shape, t, layout, view: (
    f"{tag} = tlg.alloc_shared({shape}, tl.{t}{layout})\n{tag}.store({x})\n"
    f"{{out}} = {tag}{view}.load()"))
def _(m: Machine, x: Any, tag: str, shape: tuple[int, ...], t: str, layout: str, view: str
      ) -> Value:
    if number(x).poison.any():
        raise Reject("poison in shared memory")
    out = np.broadcast_to(cast(x.x, x.dtype, t), shape)
    return value(out.transpose() if view else out, t)


def through_shared(g: Generator) -> None:
    """A tile stored to a buffer and loaded from it, turned perhaps."""
    rng = g.rng
    x = g.any(lambda v: 0 < len(v.shape) < 3 and not v.poison.any() and v.dtype != "int1"
              and all(n & n - 1 == 0 for n in v.shape))
    v = g.value(x)
    rank = len(v.shape)
    order = rng.sample(range(rank), rank)
    swizzled = f", layout=tlg.Swizzled({rng.choice([1, 4, 8])}, {rng.choice([1, 2])}, " \
        f"{rng.choice([1, 4, 8])}, {order})"
    g.put("through_shared", x, tag=g.name("s"), shape=v.shape, t=v.dtype,
          layout=rng.choice(["", swizzled]) if rank == 2 else "",
          view=rng.choice(["", ".T", ".trans(1, 0)"]) if rank == 2 else "")


ASYNC = """{tag} = tlg.alloc_shared(({block},), {x}.dtype.element_ty, stages=2)
{tag}_at = tl.arange(0, {block})
tlg.async_copy({x} + {tag}_at, {tag}[0])
tlg.async_commit()
{{out}} = tl.zeros(({block},), {x}.dtype.element_ty)
for {tag}_i in range({rounds}):
    tlg.async_copy({x} + ({tag}_i + 1) * {block} + {tag}_at, {tag}[({tag}_i + 1) % 2])
    tlg.async_commit()
    tlg.async_wait(1)
    tlg.barrier()
    {{out}} += {tag}[{tag}_i % 2].load()
    tlg.barrier()
tlg.async_wait()"""


@op("async_sum", lambda x, **rest: ASYNC.format(x=x, **rest))
def _(m: Machine, x: Any, tag: str, block: int, rounds: int) -> Value:
    t = x.dtype[1:]
    rows = m.memory.arrays[int(x.owner)][:block * rounds].reshape(rounds, block)
    return value(rows.sum(0, dtype=NUMPY[t]), t)


def async_sum(g: Generator) -> None:
    """A sum of parts that cp.async brings, one ahead."""
    t = g.rng.choice(["int32", "float32"])
    block, rounds = g.rng.choice([128, 256, 512]), g.rng.choice([1, 2, 3])
    g.put("async_sum", g.argument("whole", t, block * (rounds + 1), again=0.0), tag=g.name("s"),
          block=block, rounds=rounds)


# -- TMA ------------------------------------------------------------------------------------------

TMA_LOAD = """{tag} = tlg.alloc_shared({d}.block_shape, {d}.dtype)
{tag}_full = tlg.mbarrier()
tlg.barrier()
{tag}_full.expect({tag}.nbytes)
tlg.tma.load({d}, [{at}], {tag}, {tag}_full)
{tag}_full.wait(0)
{{out}} = {tag}.load()"""
TMA_STORE = """{tag} = tlg.alloc_shared({d}.block_shape, {d}.dtype)
{tag}.store({x})
tlg.fence_async()
tlg.barrier()
tlg.tma.{what}({d}, [{at}], {tag})
tlg.tma.store_commit()
tlg.tma.store_wait(read=True)"""


@op("tma_load", lambda d, *at, tag: TMA_LOAD.format(d=d, at=", ".join(at), tag=tag))
def _(m: Machine, d: Any, *at: Any, tag: str) -> Value:
    return read_block(m, d, at)


@op("tma_store", lambda d, x, *at, tag, what: TMA_STORE.format(
    d=d, x=x, at=", ".join(at), tag=tag, what=what))
def _(m: Machine, d: Any, x: Any, *at: Any, tag: str, what: str) -> None:
    write_block(m, d, x, at, what.removeprefix("store").removeprefix("atomic_"))


TMA_KINDS = {"int32": ["add", "max", "min", "and", "or", "xor"], "float32": ["add"],
             **dict.fromkeys(("float16", "bfloat16"), ["add", "max", "min"])}


def tma_target(g: Generator) -> None:
    if g.depth or g.program.target != "sm_90a":
        raise Reject("TMA is not there, or the barrier would be made more than once")


def described(g: Generator, fill: str, t: str, extents: Sequence[int], block: Sequence[int]) -> str:
    return g.argument(fill, t, prod(extents), again=0.0, extents=tuple(extents),
                      block=tuple(block))


def tma_load(g: Generator) -> None:
    tma_target(g)
    rng, t = g.rng, g.rng.choice(["float16", "float32", "int32", "bfloat16", "int8"])
    block = (rng.choice([8, 16, 32]), rng.choice([16, 32, 64]))
    extents = (block[0] + rng.choice([0, 5]), block[1] + rng.choice([0, 16]))
    d = described(g, "whole", t, extents, block)
    g.put("tma_load", d, rng.choice([0, 3, -2]), rng.choice([0, 16, -16]), tag=g.name("s"))


def tma_store(g: Generator) -> None:
    tma_target(g)
    rng = g.rng
    x = g.any(lambda v: len(v.shape) == 2 and v.dtype in ("float16", "float32", "int32", "bfloat16")
              and v.shape[1] % 16 == 0 and all(n & n - 1 == 0 for n in v.shape)
              and not v.poison.any())
    v = g.value(x)
    kind = rng.choice(TMA_KINDS[v.dtype]) if rng.random() < 0.5 else ""
    rows = v.shape[0] * len(g.machines)
    fill = "zero" if kind == "add" else "whole" if kind else "poison"
    d = described(g, fill, v.dtype, (rows, v.shape[1]), v.shape)
    at = g.put("mul", g.put("number"), v.shape[0])
    g.do("tma_store", d, x, at, 0, tag=g.name("s"), what=f"atomic_{kind}" if kind else "store")


# -- wgmma ----------------------------------------------------------------------------------------

WGMMA = """{tag}_a = tlg.alloc_shared(({m}, {k}), tl.{t})
{tag}_b = tlg.alloc_shared({held}, tl.{t})
{load}{tag}_b.store({b})
tlg.fence_async()
tlg.barrier()
{tag}_c = tlg.wgmma({left}, {tag}_b{turned}, {acc})
{{out}} = tlg.wgmma_wait(0, {tag}_c)"""


@op("wgmma", lambda a, b, acc, tag, m, k, t, held, registers, turned, out: WGMMA.format(
    a=a, b=b, acc=acc, tag=tag, m=m, k=k, t=t, held=held, turned=".T" if turned else "",
    load="" if registers else f"{tag}_a.store({a})\n", left=a if registers else f"{tag}_a"))
def _(machine: Machine, a: Any, b: Any, acc: Any, turned: bool, out: str, **rest: Any) -> Value:
    return matrix_product(a, b.moved(np.transpose) if turned else b, acc, out)


def wgmma(g: Generator) -> None:
    """A product of two tiles through shared memory, or the first from registers."""
    rng, p = g.rng, g.program
    p.target, p.options["num_warps"] = "sm_90a", rng.choice([4, 8])
    t, out = rng.choice([("float16", "float32"), ("bfloat16", "float32"), ("int8", "int32"),
                         ("float8e4nv", "float32"), ("float16", "float16")])
    m, n = 16 * p.options["num_warps"], rng.choice([16, 32, 48, 64])
    k = rng.choice([32, 64])
    turned = t not in ("float16", "bfloat16") or rng.random() < 0.5
    held = (n, k) if turned else (k, n)
    a, b = (g.put("load", g.put("add", g.argument("whole", t, prod(shape), again=0.0), g.put(
        "lanes", shape=shape, strides=(shape[1], 1), flip=())), None, None, more="")
        for shape in ((m, k), held))
    acc = g.put("full", shape=(m, n), x=rng.choice([0, 2]), t=out)
    registers = rng.random() < 0.4
    g.store(g.put("wgmma", a, b, acc, tag=g.name("s"), m=m, k=k, t=t, held=held,
                  registers=registers, turned=turned, out=out))


RING = """{tag}_a = tlg.alloc_shared({a}.block_shape, {a}.dtype, stages={stages})
{tag}_b = tlg.alloc_shared({b}.block_shape, {b}.dtype, stages={stages})
{tag}_full = tlg.mbarrier(stages={stages})
tlg.barrier()
for {tag}_s in range({stages} - 1):
    if tlg.elect({tag}_s < {steps}):
        {tag}_full[{tag}_s].expect({tag}_a.nbytes + {tag}_b.nbytes)
        tlg.tma.load({a}, [{i}, {tag}_s * {step}], {tag}_a[{tag}_s], {tag}_full[{tag}_s])
        tlg.tma.load({b}, [{tag}_s * {step}, 0], {tag}_b[{tag}_s], {tag}_full[{tag}_s])
{{out}} = tl.zeros(({m}, {n}), tl.float32)
for {tag}_s in range({steps}):
    {tag}_at = {tag}_s % {stages}
    {tag}_full[{tag}_at].wait({tag}_s // {stages} & 1)
    {{out}} = tlg.wgmma({tag}_a[{tag}_at], {tag}_b[{tag}_at], {{out}}, use_acc={tag}_s > 0)
    {{out}} = tlg.wgmma_wait({pending}, {{out}})
    tlg.barrier()
    {tag}_ahead = {tag}_s + {stages} - 1
    if tlg.elect({tag}_ahead < {steps}):
        {tag}_free = {tag}_ahead % {stages}
        {tag}_full[{tag}_free].expect({tag}_a.nbytes + {tag}_b.nbytes)
        tlg.tma.load({a}, [{i}, {tag}_ahead * {step}], {tag}_a[{tag}_free], {tag}_full[{tag}_free])
        tlg.tma.load({b}, [{tag}_ahead * {step}, 0], {tag}_b[{tag}_free], {tag}_full[{tag}_free])
{{out}} = tlg.wgmma_wait(0, {{out}})"""
PIPELINE = """{tag}_ring = tlg.make_ring(({a}, {b}), {stages})
{{out}}, {tag}_ring = tlg.emit_pipeline(multiply_step, place_step, {steps}, ({a}, {b}), {tag}_ring,
    tl.zeros(({m}, {n}), tl.float32), ({i}, {step}))
{{out}} = tlg.wgmma_wait(0, {{out}})"""
STEP = '''@tilec.jit
def multiply_step(k, blocks, acc, i, step):
    return tlg.wgmma_wait(1, tlg.wgmma(blocks[0], blocks[1], acc))


@tilec.jit
def place_step(k, i, step):
    return (i, k * step), (k * step, 0)


'''


def ring_product(machine: Machine, a: Any, b: Any, i: Any, m: int, n: int, step: int, steps: int
                 ) -> Value:
    """Rows i .. of a descriptor's tensor times the columns of another's, which fill one block."""
    if not (isinstance(a, Record) and isinstance(b, Record)):
        raise Reject("no descriptors")
    parts = [[read_block(machine, a, (i, s * step)), read_block(machine, b, (s * step, 0))]
             for s in range(steps)]
    left = np.concatenate([x.x for x, _ in parts], 1)
    right = np.concatenate([y.x for _, y in parts], 0)
    return matrix_product(value(left, a.dtype), value(right, b.dtype), None, "float32")


for _name, _text, _prelude in (("wgmma_ring", RING, ""), ("emit_pipeline", PIPELINE, STEP)):
    @op(_name, lambda a, b, i, text=_text, **rest: text.format(a=a, b=b, i=i, **rest), _prelude)
    def _(machine: Machine, a: Any, b: Any, i: Any, m: int, n: int, step: int, steps: int,
          **rest: Any) -> Value:
        return ring_product(machine, a, b, i, m, n, step, steps)


def wgmma_ring(g: Generator) -> None:
    """A pipeline of products over k by hand, or by tlg.emit_pipeline."""
    rng, p = g.rng, g.program
    p.target, p.options["num_warps"] = "sm_90a", rng.choice([4, 8])
    t = rng.choice(["float16", "bfloat16"])
    m, n, step = 16 * p.options["num_warps"], rng.choice([32, 64]), rng.choice([32, 64])
    length = rng.randint(1, 4) * step - rng.choice([0, 8, 16])
    stages = rng.choice([2, 3])
    rows = m * len(g.machines) - rng.choice([0, 5])
    a = described(g, "whole", t, (rows, length), (m, step))
    b = described(g, "whole", t, (length, n), (step, n))
    i = g.put("mul", g.put("number"), m)
    out = g.put(rng.choice(["wgmma_ring", "emit_pipeline"]), a, b, i, tag=g.name("s"), m=m, n=n,
                step=step, steps=-(-length // step), stages=stages,
                pending=rng.choice([0, 1]) if stages > 2 else 0)
    g.store(out)


EXPLICIT: Kinds = {wgmma: 2, wgmma_ring: 3, **CLUSTERS_AND_ROLES}
SMALL: Kinds = {convert: 2, through_shared: 2, async_sum: 1, tma_load: 2, tma_store: 2}
