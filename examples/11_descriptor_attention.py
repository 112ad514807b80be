"""Attention over tensor descriptors, forward and backward: full and causal, with fewer heads of
keys than of queries (GQA) if wanted.

On Hopper, TMA brings the blocks, wgmma multiplies them, and the loop is rotated: the scores of a
block begin together with the product of the block before it, so that the tensor cores work while
threads compute exponentials. Nothing here says so; it is one plain loop. With warp roles, a loop
over tiles is around it, through which the role that loads runs on: the next tile's first blocks
come while this one's last products are computed and its result is stored.

Backward, p is computed again from the logarithms of the sums that the forward pass has stored. One
kernel has a block of queries and sums dq over the keys, another has a block of keys and sums dk and
dv over the queries; it multiplies keys by queries, so that what it makes of the scores is a first
operand as it stands in registers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import support

import tilec
import tilec.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
# Rows of lse and delta are stored up to a multiple of so many, so that blocks need no masks.
PADDED = tl.constexpr(128)


@tilec.jit
def padded(head, rows):
    """Where a head's rows of lse and delta begin."""
    return head * (tl.cdiv(rows, PADDED) * PADDED)


@tilec.jit
def attend(q, k, v, out, head, first, scale, SHARED: tl.constexpr, CAUSAL: tl.constexpr, lse):
    """One tile of `attention_kernel`: the rows of a head from `first` on."""
    BM: tl.constexpr = q.block_shape[1]
    BN: tl.constexpr = k.block_shape[1]
    D: tl.constexpr = q.block_shape[2]
    scale *= LOG2_E
    queries = q.load([head, first, 0]).reshape(BM, D)
    acc = tl.zeros((BM, D), tl.float32)
    top = tl.full((BM,), -1.0e30, tl.float32)
    # Sums of each eighth column: threads need not exchange them in every round.
    total = tl.zeros((BM, 8), tl.float32)
    end = k.shape[1]
    if CAUSAL:
        end = tl.minimum(end, first + BM)
    for start in range(0, end, BN):
        keys = k.load([head // SHARED, start, 0]).reshape(BN, D)
        s = tl.dot(queries, tl.trans(keys))
        # Only on the diagonal and at the end is anything of this computed.
        columns = start + tl.arange(0, BN)[None, :]
        valid = columns < k.shape[1]
        if CAUSAL:
            valid = valid & (first + tl.arange(0, BM)[:, None] >= columns)
        s = tl.where(valid, s, -1.0e30)
        # The scale comes after the maximum, so that scaling and subtraction are one fma.
        new_top = tl.maximum(top, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - new_top[:, None])
        rescale = tl.exp2(top - new_top)
        total = total * rescale[:, None] + tl.sum(p.reshape(BM, BN // 8, 8), 1)
        values = v.load([head // SHARED, start, 0]).reshape(BN, D)
        acc = tl.dot(p.to(v.dtype), values, acc * rescale[:, None])
        top = new_top
    sums = tl.sum(total, 1)
    out.store([head, first, 0], (acc * (1.0 / sums)[:, None]).reshape(1, BM, D))
    if lse is not None:
        rows = first + tl.arange(0, BM)
        tl.store(lse + padded(head, q.shape[1]) + rows,
                 tl.where(rows < q.shape[1], top + tl.log2(sums), float("inf")))


@tilec.jit
def place(tile, heads, blocks, CAUSAL: tl.constexpr, GROUP: tl.constexpr):
    """The head of a tile, and which block of its rows that is.

    A causal mask gives tiles different lengths. The longest come first, of GROUP heads at a time,
    so that their keys stay in the L2 cache; programs get them from the first to the last, then
    from the last to the first, so that who got a long one gets a short one. A round that lacks
    tiles goes forward."""
    head, block = tile // blocks, tile % blocks
    if CAUSAL:
        programs, begin = tl.num_programs(0), tile - tl.program_id(0)
        back = (begin // programs % 2 == 1) & (begin + programs <= heads * blocks)
        tile = tl.where(back, begin + programs - 1 - tl.program_id(0), tile)
        band = tile // (GROUP * blocks) * GROUP
        height = tl.minimum(heads - band, GROUP)
        within = tile % (GROUP * blocks)
        head, block = band + within % height, blocks - 1 - within // height
    return head, block


@tilec.jit
def attention_kernel(q, k, v, out, scale, SHARED: tl.constexpr, CAUSAL: tl.constexpr, lse=None,
                     WS: tl.constexpr = False, GROUP: tl.constexpr = 8):
    """softmax(scale * q k') v. q, out: (heads, rows, D) in blocks (1, BM, D); k, v:
    (heads / SHARED, columns, D) in blocks (1, BN, D). One program for BM rows of one head.
    lse: (heads, padded rows), the logarithms to base 2 of the sums of exp(scale * q k'), if wanted;
    infinity past the last row, so that p is 0 there. WS: warps of their own load the blocks, and
    any number of programs share the tiles; GROUP: see `place`."""
    BM: tl.constexpr = q.block_shape[1]
    if WS:
        rows = q.shape[1] if lse is None else padded(1, q.shape[1])
        blocks = tl.cdiv(rows, BM)
        for tile in tl.range(tl.program_id(0), q.shape[0] * blocks, tl.num_programs(0),
                             warp_specialize=True):
            head, block = place(tile, q.shape[0], blocks, CAUSAL, GROUP)
            attend(q, k, v, out, head, block * BM, scale, SHARED, CAUSAL, lse)
    else:
        # The longest rows of a causal mask first: the short ones fill the end.
        block = tl.num_programs(0) - 1 - tl.program_id(0) if CAUSAL else tl.program_id(0)
        attend(q, k, v, out, tl.program_id(1), block * BM, scale, SHARED, CAUSAL, lse)


@tilec.jit
def row_products_kernel(out, dout, delta):
    """delta = the sums of out * dout along rows; (heads, rows, D) in blocks (1, BM, D)."""
    BM: tl.constexpr = out.block_shape[1]
    head, first = tl.program_id(1), tl.program_id(0) * BM
    product = out.load([head, first, 0]).to(tl.float32) * dout.load([head, first, 0])
    rows = first + tl.arange(0, BM)
    tl.store(delta + padded(head, out.shape[1]) + rows, tl.sum(product, 2).reshape(BM))


@tilec.jit
def grad_queries_kernel(q, k, v, dout, dq, lse, delta, scale, SHARED: tl.constexpr,
                        CAUSAL: tl.constexpr, WS: tl.constexpr = False):
    """dq for BM rows of one head. Shapes and blocks: dout, dq as q. WS: as in `attention_kernel`,
    but each tile has a program."""
    BM: tl.constexpr = q.block_shape[1]
    BN: tl.constexpr = k.block_shape[1]
    D: tl.constexpr = q.block_shape[2]
    head = tl.program_id(1)
    block = tl.num_programs(0) - 1 - tl.program_id(0) if CAUSAL else tl.program_id(0)
    first = block * BM
    queries = q.load([head, first, 0]).reshape(BM, D)
    douts = dout.load([head, first, 0]).reshape(BM, D)
    rows = first + tl.arange(0, BM)
    at = padded(head, q.shape[1]) + rows
    log_sum = tl.load(lse + at)
    product = tl.load(delta + at)
    acc = tl.zeros((BM, D), tl.float32)
    end = k.shape[1]
    if CAUSAL:
        end = tl.minimum(end, first + BM)
    for start in tl.range(0, end, BN, warp_specialize=WS):
        keys = k.load([head // SHARED, start, 0]).reshape(BN, D)
        values = v.load([head // SHARED, start, 0]).reshape(BN, D)
        s = tl.dot(queries, tl.trans(keys))
        dp = tl.dot(douts, tl.trans(values))
        columns = start + tl.arange(0, BN)[None, :]
        valid = columns < k.shape[1]
        if CAUSAL:
            valid = valid & (rows[:, None] >= columns)
        s = tl.where(valid, s, -float("inf"))
        p = tl.exp2(s * (scale * LOG2_E) - log_sum[:, None])
        ds = p * (dp - product[:, None])
        acc = tl.dot(ds.to(k.dtype), keys, acc)
    dq.store([head, first, 0], (acc * scale).reshape(1, BM, D))


@tilec.jit
def grad_keys_values_kernel(q, k, v, dout, dk, dv, lse, delta, scale, SHARED: tl.constexpr,
                            CAUSAL: tl.constexpr, WS: tl.constexpr = False):
    """dk and dv for BN keys of one head of theirs, summed over the SHARED heads of queries."""
    BM: tl.constexpr = q.block_shape[1]
    BN: tl.constexpr = k.block_shape[1]
    D: tl.constexpr = q.block_shape[2]
    first = tl.program_id(0) * BN
    keys = k.load([tl.program_id(1), first, 0]).reshape(BN, D)
    values = v.load([tl.program_id(1), first, 0]).reshape(BN, D)
    columns = first + tl.arange(0, BN)
    dk_acc = tl.zeros((BN, D), tl.float32)
    dv_acc = tl.zeros((BN, D), tl.float32)
    begin = first // BM * BM if CAUSAL else 0
    for sharing in range(SHARED):
        head = tl.program_id(1) * SHARED + sharing
        for start in tl.range(begin, q.shape[1], BM, warp_specialize=WS):
            queries = q.load([head, start, 0]).reshape(BM, D)
            douts = dout.load([head, start, 0]).reshape(BM, D)
            rows = start + tl.arange(0, BM)
            at = padded(head, q.shape[1]) + rows
            log_sum = tl.load(lse + at)
            product = tl.load(delta + at)
            s = tl.dot(keys, tl.trans(queries))
            dp = tl.dot(values, tl.trans(douts))
            if CAUSAL:
                s = tl.where(rows[None, :] >= columns[:, None], s, -float("inf"))
            p = tl.exp2(s * (scale * LOG2_E) - log_sum[None, :])
            dv_acc = tl.dot(p.to(dout.dtype), douts, dv_acc)
            ds = p * (dp - product[None, :])
            dk_acc = tl.dot(ds.to(q.dtype), queries, dk_acc)
    dk.store([tl.program_id(1), first, 0], (dk_acc * scale).reshape(1, BN, D))
    dv.store([tl.program_id(1), first, 0], dv_acc.reshape(1, BN, D))


def padded_rows(rows: int) -> int:
    """Columns of lse and delta."""
    return tilec.cdiv(rows, PADDED.value) * PADDED.value


def attention(q: Any, k: Any, v: Any, out: Any, causal: bool, block: tuple[int, int] = (128, 128),
              num_warps: int = 8, num_stages: int = 2, lse: Any = None, ws: bool = False) -> Any:
    """out = attention of q, out (heads, rows, D) and k, v (fewer heads or as many, columns, D), all
    contiguous; returns the kernel. lse: float32 (heads, padded_rows(rows)), for `gradients`. ws:
    warps of their own load the blocks, and few programs share the tiles."""
    heads, rows, d = q.shape
    described = [tilec.TensorDescriptor.from_tensor(x, (1, block[x is k or x is v], d))
                 for x in (q, k, v, out)]
    blocks = tilec.cdiv(rows if lse is None else padded_rows(rows), block[0])
    grid, how = (blocks, heads), {"SHARED": heads // k.shape[0], "CAUSAL": causal, "WS": ws}
    if ws:
        grid, group = shared_out(heads, blocks, causal)
        how["GROUP"] = group
    return attention_kernel[grid](*described, 1.0 / math.sqrt(d), lse=lse, **how,
                                  num_warps=num_warps, num_stages=num_stages)


def shared_out(heads: int, blocks: int, causal: bool) -> tuple[tuple[int], int]:
    """(the grid, GROUP) for tiles with warp roles. Of a causal mask, two rounds are one band, so
    that every program gets as much; if that does not come out even, each tile gets a program, and
    the GPU starts the next one where one ends."""
    programs = support.programs(heads * blocks)
    group, rest = divmod(2 * programs, blocks)
    if not causal or rest:
        return (heads * blocks if causal else programs,), 8
    return (programs,), group


def gradients(q: Any, k: Any, v: Any, out: Any, dout: Any, lse: Any, delta: Any, dq: Any, dk: Any,
              dv: Any, causal: bool, blocks: tuple[tuple[int, int], ...] = ((128, 64), (64, 128)),
              num_warps: int = 8, num_stages: tuple[int, int] = (3, 3), ws: bool = False) -> None:
    """dq, dk, dv = the gradients of a loss by q, k, v if dout is that by out; shapes as in
    `attention`, which has made out and lse. delta: float32 like lse, for the sums of out * dout.
    blocks and num_stages: (BM, BN) and stages for dq, and for dk and dv. ws: warps of their own
    load the blocks."""
    heads, rows, d = q.shape
    shared, scale, of_keys = heads // k.shape[0], 1.0 / math.sqrt(d), (k, v, dk, dv)

    def described(block: tuple[int, int], *arrays: Any) -> list[Any]:
        return [tilec.TensorDescriptor.from_tensor(
            x, (1, block[any(x is y for y in of_keys)], d)) for x in arrays]

    row_products_kernel[(padded_rows(rows) // 64, heads)](
        *described((64, 64), out, dout), delta)
    options = {"SHARED": shared, "CAUSAL": causal, "WS": ws, "num_warps": num_warps}
    grad_queries_kernel[(tilec.cdiv(rows, blocks[0][0]), heads)](
        *described(blocks[0], q, k, v, dout, dq), lse, delta, scale, num_stages=num_stages[0],
        **options)
    grad_keys_values_kernel[(tilec.cdiv(k.shape[1], blocks[1][1]), k.shape[0])](
        *described(blocks[1], q, k, v, dout, dk, dv), lse, delta, scale, num_stages=num_stages[1],
        **options)


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    """The same in float64."""
    return weights(q, k, causal) @ np.repeat(v, len(q) // len(v), 0)


def weights(q: np.ndarray, k: np.ndarray, causal: bool) -> np.ndarray:
    """What the values are multiplied by."""
    s = q @ np.repeat(k, len(q) // len(k), 0).swapaxes(1, 2) / math.sqrt(q.shape[-1])
    if causal:
        s = np.where(np.tril(np.ones(s.shape[1:], bool)), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def reference_gradients(q: np.ndarray, k: np.ndarray, v: np.ndarray, dout: np.ndarray, causal: bool
                        ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """dq, dk, dv in float64."""
    p, shared = weights(q, k, causal), len(q) // len(k)
    dp = dout @ np.repeat(v, shared, 0).swapaxes(1, 2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
    dk, dv = ((x.swapaxes(1, 2) @ y).reshape(len(k), shared, *k.shape[1:]).sum(1)
              for x, y in ((ds, q), (p, dout)))
    return ds @ np.repeat(k, shared, 0), dk, dv


def main(heads: int = 4, shared: int = 2, n_ctx: int = 150, d: int = 64) -> None:
    case = f"{heads} x {n_ctx} x {d} bfloat16, {support.place()}"
    for causal in (False, True):
        q, k, v, dout = (support.array(
            support.normal(i, heads // (shared if i in (1, 2) else 1), n_ctx, d), "bfloat16")
            for i in range(4))
        out = support.poisoned(tuple(q.shape), "bfloat16")
        lse, delta = (support.poisoned((heads, padded_rows(n_ctx)), "float32") for _ in range(2))
        kind = "causal" if causal else "full"
        for ws in (True, False):
            attention(q, k, v, out, causal, block=(64, 64), num_warps=4, lse=lse, ws=ws)
            how = "by roles, " if ws else ""
            support.check(f"attention, {kind}, {how}{case}", out,
                          reference(*map(support.host, (q, k, v)), causal), 2e-2)
        want = reference_gradients(*map(support.host, (q, k, v, dout)), causal)
        for ws in (True, False):
            dq, dk, dv = (support.poisoned(tuple(x.shape), "bfloat16") for x in (q, k, v))
            gradients(q, k, v, out, dout, lse, delta, dq, dk, dv, causal, ((64, 64), (64, 64)), 4,
                      ws=ws)
            how = "by roles, " if ws else ""
            for name, got, expected in zip(("dq", "dk", "dv"), (dq, dk, dv), want, strict=True):
                support.check(f"{name}, {kind}, {how}{case}", got, expected, 2e-2)


if __name__ == "__main__":
    main()
