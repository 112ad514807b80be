"""The gradients of attention in one kernel, at the explicit level.

Example 11 has two kernels in plain `tl`, which multiply seven times for each pair of blocks: one
sums dq over the keys, the other dk and dv over the queries, and both make the scores and dp. Here
scores and dp are made once, five products in all: a program has a block of keys, sums dk and dv in
registers, and adds its share of dq to a tensor in float32, atomically, by TMA. So the last bits of
dq depend on the order in which programs come.

Read example 10 first. What is new here is how the products are kept busy: two warpgroups share the
rows of the keys, but dq needs what both made, so that they meet in every round. The products of dq
and dk therefore run one round later, beside dp and under the exponentials of the next one.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import support

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg

forward = importlib.import_module("11_descriptor_attention")

LOG2_E = tl.constexpr(1.4426950408889634)
WARPGROUPS = tl.constexpr(2)


@tilec.jit
def following(head, start, begin, rows, BM: tl.constexpr):
    """The block of queries after the one at `start` of a head: the next head's first one, if it was
    the last."""
    ends = start + BM >= rows
    return tl.where(ends, head + 1, head), tl.where(ends, begin, start + BM)


@tilec.jit
def fetch(block, numbers, ring, number_ring, full, slot, head, start, wanted):
    """One thread starts the copies of a block of queries, or of dout, and of a number for each of
    its rows."""
    if tlg.elect(wanted):
        full[slot].expect(ring[slot].nbytes + number_ring[slot].nbytes)
        tlg.tma.load(block, [head, start, 0], ring[slot], full[slot])
        tlg.tma.load(numbers, [head, start], number_ring[slot], full[slot])


@tilec.jit
def probabilities(s, log_sum, scale, start, first, CAUSAL: tl.constexpr):
    """exp(scale * s) / sums, keys by queries; 0 where a query comes before a key."""
    if CAUSAL:
        keys = first + tl.arange(0, s.shape[0])
        queries = start + tl.arange(0, s.shape[1])
        s = tl.where(queries[None, :] >= keys[:, None], s, -float("inf"))
    return tl.exp2(s * (scale * LOG2_E) - log_sum[None, :])


@tilec.jit
def send(dq_sum, dq_buffer, head, start):
    """All have filled the buffer: the first thread has it added to dq."""
    tlg.fence_async()
    tlg.barrier()
    tlg.tma.atomic_add(dq_sum, [head, start, 0], dq_buffer)
    tlg.tma.store_commit()


@tilec.jit
def gradients_kernel(q, k, v, dout, dq_sum, dk, dv, lse, delta, scale, SHARED: tl.constexpr,
                     CAUSAL: tl.constexpr, STAGES: tl.constexpr):
    """dk and dv of a block of keys, and what it adds to dq_sum. q, dout, dq_sum: (heads, rows, D)
    in blocks (1, BM, D); k, v, dk, dv: (heads / SHARED, columns, D) in blocks (1, BN, D); lse,
    delta: (heads, padded rows) in blocks (1, BM). STAGES: three or more, see 6."""
    tl.static_assert(STAGES >= 3, "the ring needs three slots or more")
    # 1. What there is to do: `rounds` blocks of queries, those of one head after those of another.
    BM: tl.constexpr = q.block_shape[1]
    BN: tl.constexpr = k.block_shape[1]
    D: tl.constexpr = q.block_shape[2]
    rows = q.shape[1]
    first, kv_head = tl.program_id(0) * BN, tl.program_id(1)
    begin = first // BM * BM if CAUSAL else 0  # no query before these keys sees them
    rounds = SHARED * tl.maximum(tl.cdiv(rows - begin, BM), 1)

    # 2. Buffers. A slot of a ring has a block, and a number for each of its rows.
    keys = tlg.alloc_shared((BN, D), k.dtype)
    values = tlg.alloc_shared((BN, D), v.dtype)
    q_ring = tlg.alloc_shared((BM, D), q.dtype, stages=STAGES)
    dout_ring = tlg.alloc_shared((BM, D), dout.dtype, stages=STAGES)
    lse_ring = tlg.alloc_shared((BM,), tl.float32, stages=STAGES)
    delta_ring = tlg.alloc_shared((BM,), tl.float32, stages=STAGES)
    ds_buffer = tlg.alloc_shared((BN, BM), q.dtype)
    dq_buffer = tlg.alloc_shared((BM, D), tl.float32)
    there = tlg.mbarrier()
    q_full, dout_full = tlg.mbarrier(stages=STAGES), tlg.mbarrier(stages=STAGES)
    if tlg.elect():
        there.expect(keys.nbytes + values.nbytes)
        tlg.tma.load(k, [kv_head, first, 0], keys, there)
        tlg.tma.load(v, [kv_head, first, 0], values, there)
    head, start = kv_head * SHARED, begin
    far_head, far = head, start  # the copies' cursor, which is STAGES - 1 rounds ahead
    for slot in tl.static_range(STAGES - 1):
        fetch(q, lse, q_ring, lse_ring, q_full, slot, far_head, far, slot <= rounds)
        fetch(dout, delta, dout_ring, delta_ring, dout_full, slot, far_head, far, slot <= rounds)
        far_head, far = following(far_head, far, begin, rows, BM)

    # 3. The first scores. The first round has no round before it: it gets a ds of zeros.
    ds_buffer.store(tl.zeros((BN, BM), q.dtype))
    tlg.fence_async()
    tlg.barrier()
    there.wait(0)
    q_full[0].wait(0)
    dk_acc = tl.zeros((BN, D), tl.float32)
    dv_acc = tl.zeros((BN, D), tl.float32)
    fresh = tl.zeros((BN, BM), tl.float32)
    s = tlg.wgmma_wait(0, tlg.wgmma(keys, q_ring[0].T, fresh, use_acc=False))
    slot, phase = 0, 0
    last_slot, last_head, last = slot, head, start
    for r in range(rounds):
        # 4. The rest of the round before: dq = ds' keys and dk += ds q. dq goes out as soon as it
        #    is there, which frees its registers for dp = values dout'.
        dout_full[slot].wait(phase)
        dq = tlg.wgmma(ds_buffer.T, keys, tl.zeros((BM, D), tl.float32), use_acc=False)
        dk_acc = tlg.wgmma(ds_buffer, q_ring[last_slot], dk_acc)
        dq, dk_acc = tlg.wgmma_wait(1, dq, dk_acc)
        dq_buffer.store(dq)
        dp = tlg.wgmma(values, dout_ring[slot].T, fresh, use_acc=False)
        p = probabilities(s, lse_ring[slot].load(), scale, start, first, CAUSAL)
        dk_acc, dp = tlg.wgmma_wait(1, dk_acc, dp)
        send(dq_sum, dq_buffer, last_head, last)  # all meet here, done with the old ds

        # 5. dv += p dout, with p from registers, runs while ds = p (dp - delta) is made, and the
        #    next scores while that is stored.
        dv_acc = tlg.wgmma(p.to(dout.dtype), dout_ring[slot], dv_acc)
        dp, dv_acc = tlg.wgmma_wait(1, dp, dv_acc)
        ds = (p * (dp - delta_ring[slot].load()[None, :])).to(q.dtype)
        last_slot, last_head, last = slot, head, start
        head, start = following(head, start, begin, rows, BM)
        slot += 1
        phase = tl.where(slot == STAGES, phase ^ 1, phase)
        slot = tl.where(slot == STAGES, 0, slot)
        q_full[slot].wait(phase)
        s = tlg.wgmma(keys, q_ring[slot].T, s, use_acc=False)
        ds_buffer.store(ds)
        tlg.fence_async()
        tlg.tma.store_wait(read=True)
        dv_acc, s = tlg.wgmma_wait(0, dv_acc, s)
        tlg.barrier()

        # 6. All have the new ds, and are done with the round before, whose slot takes new copies.
        #    Of this round q is still needed, and the next one's is there: hence three slots. The
        #    last round begins scores that nobody will use, of one block more than there are.
        free = tl.where(last_slot == 0, STAGES, last_slot) - 1
        wanted = r + STAGES - 1 <= rounds
        fetch(q, lse, q_ring, lse_ring, q_full, free, far_head, far, wanted)
        fetch(dout, delta, dout_ring, delta_ring, dout_full, free, far_head, far, wanted)
        far_head, far = following(far_head, far, begin, rows, BM)

    # 7. What the last round left, and the sums.
    dq = tlg.wgmma(ds_buffer.T, keys, tl.zeros((BM, D), tl.float32), use_acc=False)
    dk_acc = tlg.wgmma(ds_buffer, q_ring[last_slot], dk_acc)
    dq, dk_acc = tlg.wgmma_wait(0, dq, dk_acc)
    dq_buffer.store(dq)
    send(dq_sum, dq_buffer, last_head, last)
    dout_full[slot].wait(phase)
    tlg.tma.store_wait(read=True)
    dk.store([kv_head, first, 0], (dk_acc * scale).reshape(1, BN, D))
    dv.store([kv_head, first, 0], dv_acc.reshape(1, BN, D))


@tilec.jit
def prepare_kernel(out, dout, dq_sum, delta):
    """delta = the sums of out * dout along rows, dq_sum = 0. out, dout, dq_sum: (heads, rows, D) in
    blocks (1, BM, D); delta: (heads, padded rows)."""
    BM: tl.constexpr = out.block_shape[1]
    head, first = tl.program_id(1), tl.program_id(0) * BM
    product = out.load([head, first, 0]).to(tl.float32) * dout.load([head, first, 0])
    rows = first + tl.arange(0, BM)
    tl.store(delta + forward.padded(head, out.shape[1]) + rows, tl.sum(product, 2).reshape(BM))
    dq_sum.store([head, first, 0], tl.zeros(out.block_shape, tl.float32))


@tilec.jit
def finish_kernel(dq_sum, dq, scale):
    """dq = scale * dq_sum; (heads, rows, D) in blocks (1, BM, D)."""
    BM: tl.constexpr = dq.block_shape[1]
    at = [tl.program_id(1), tl.program_id(0) * BM, 0]
    dq.store(at, dq_sum.load(at) * scale)


def gradients(q: Any, k: Any, v: Any, out: Any, dout: Any, lse: Any, delta: Any, dq_sum: Any,
              dq: Any, dk: Any, dv: Any, causal: bool, block: tuple[int, int] = (64, 128),
              num_stages: int = 3) -> Any:
    """dq, dk, dv = the gradients of a loss by q, k, v if dout is that by out; returns the kernel.

    Shapes as in example 11, whose `attention` has made out and lse. delta: float32 like lse.
    dq_sum: float32 of q's shape. block: rows of q and of k, 64 for each warpgroup.
    """
    heads, rows, d = q.shape
    scale, (bm, bn) = 1.0 / math.sqrt(d), block

    def blocks(rows: int, *arrays: Any) -> list[Any]:
        return [tilec.TensorDescriptor.from_tensor(x, (1, rows, d)) for x in arrays]

    numbers = [tilec.TensorDescriptor.from_tensor(x, (1, bm)) for x in (lse, delta)]
    prepare_kernel[(forward.padded_rows(rows) // 32, heads)](*blocks(32, out, dout, dq_sum), delta)
    kernel = gradients_kernel[(tilec.cdiv(k.shape[1], bn), k.shape[0])](
        *blocks(bm, q), *blocks(bn, k, v), *blocks(bm, dout, dq_sum), *blocks(bn, dk, dv), *numbers,
        scale, SHARED=heads // k.shape[0], CAUSAL=causal, STAGES=num_stages,
        num_warps=4 * WARPGROUPS.value)
    finish_kernel[(tilec.cdiv(rows, 32), heads)](*blocks(32, dq_sum, dq), scale)
    return kernel


def main(heads: int = 4, shared: int = 2, n_ctx: int = 150, d: int = 64) -> None:
    case = f"{heads} x {n_ctx} x {d} bfloat16, {support.place()}"
    for causal in (False, True):
        q, k, v, dout = (support.array(
            support.normal(i, heads // (shared if i in (1, 2) else 1), n_ctx, d), "bfloat16")
            for i in range(4))
        out, dq, dk, dv = (support.poisoned(tuple(x.shape), "bfloat16") for x in (q, q, k, v))
        lse, delta = (support.poisoned((heads, forward.padded_rows(n_ctx)), "float32")
                      for _ in range(2))
        dq_sum = support.poisoned(tuple(q.shape), "float32")
        forward.attention(q, k, v, out, causal, block=(64, 64), num_warps=4, lse=lse)
        gradients(q, k, v, out, dout, lse, delta, dq_sum, dq, dk, dv, causal)
        want = forward.reference_gradients(*map(support.host, (q, k, v, dout)), causal)
        for name, got, expected in zip(("dq", "dk", "dv"), (dq, dk, dv), want, strict=True):
            support.check(f"{name}, {'causal' if causal else 'full'}, {case}", got, expected, 2e-2)


if __name__ == "__main__":
    main()
