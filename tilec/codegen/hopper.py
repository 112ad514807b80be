"""Lowering of what sm_90a has beside wgmma: who acts, mbarriers, TMA, fences.

What one thread of many does is either in a branch that it alone takes, or one instruction with a
predicate. Source: PTX ISA, "Data movement and conversion" and "mbarrier".
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.codegen.cluster import remote
from tilec.codegen.context import CodeGen, lower
from tilec.codegen.emit import Reg
from tilec.codegen.memory import cache_policy
from tilec.ir import ops
from tilec.ir.buffers import stage_bytes
from tilec.ir.core import Value
from tilec.ir.descriptors import buffer_offset, tma_boxes
from tilec.ir.ops.hopper import TmaOp
from tilec.ir.types import MemDesc

WARPGROUP = 128  # threads


Operands = Sequence[tuple[str, Reg]]  # constraint and value of each operand of an asm


@lower(ops.Elect)
def _elect(cg: CodeGen, op: ops.Elect) -> None:
    e, by_warp = cg.e, op.by == "warp"
    index, wanted = (cg.warp(), op.warp) if by_warp else (cg.thread(), 32 * op.warp)
    mine = e.compare("eq", index, e.const(wanted, "i32"))
    if op.predicate is not None:
        mine = e.binary("and", mine, cg.scalar(op.predicate))
    with e.when(mine, "elect"):
        cg.elects = by_warp
        cg.block(op.body)
        cg.elects = False


def _single(cg: CodeGen, text: str, operands: Operands = ()) -> None:
    """PTX that the thread of a `gpu.elect` runs. Of a whole warp elect.sync always names the same
    thread, and ptxas knows of it what it needs to issue TMA without a loop over the lanes."""
    if cg.elects:
        text = f"{{ .reg .pred p; elect.sync _|p, 0xffffffff; @p {text} }}"
    _asm(cg, text, operands, cg.elects)


def _first(cg: CodeGen, text: str, operands: Operands = (), number: Reg | None = None) -> None:
    """PTX that the first thread of each warpgroup runs, or that whose `number` is 0."""
    one = number or _in_warpgroup(cg)
    _asm(cg, f"{{ .reg .pred p; setp.eq.u32 p, ${len(operands)}, 0; @p {text} }}",
         [*operands, ("r", one)], False)


def _asm(cg: CodeGen, text: str, operands: Operands, convergent: bool) -> None:
    cg.e.asm(text, ",".join(kind for kind, _ in operands), [value for _, value in operands], (),
             convergent=convergent)


def _in_warpgroup(cg: CodeGen) -> Reg:
    """The thread's number in its warpgroup."""
    return cg.e.once("in warpgroup", lambda: cg.e.int_op("and", cg.thread(), WARPGROUP - 1))


def _address(cg: CodeGen, pointer: Reg, offset: int = 0) -> Reg:
    """The 32-bit shared address of a byte of a buffer."""
    return cg.e.convert("ptrtoint", cg.shift(pointer, offset), "i32")


@lower(ops.WarpgroupBarrier)
def _warpgroup_barrier(cg: CodeGen, op: ops.WarpgroupBarrier) -> None:
    if cg.num_warps < WARPGROUP // 32:
        cg.barrier()
        return
    first = cg.warps.warpgroup_barriers
    one = cg.num_warps == WARPGROUP // 32
    cg.named_barrier(cg.e.const(first, "i32") if one else cg.e.int_op("add", cg.warpgroup(), first),
                     WARPGROUP)


@lower(ops.FenceAsync)
def _fence(cg: CodeGen, op: ops.FenceAsync) -> None:
    cg.e.asm("fence.proxy.async.shared::cta;", "", (), ())


# ---- mbarriers
@lower(ops.MbarrierInit)
def _init(cg: CodeGen, op: ops.MbarrierInit) -> None:
    t = op.barrier.type
    assert isinstance(t, MemDesc)
    for i in range(t.stages):
        address = _address(cg, cg.scalar(op.barrier), i * stage_bytes(t))
        _single(cg, f"mbarrier.init.shared::cta.b64 [$0], {op.count};", [("r", address)])
    if not isinstance(op.next, ops.MbarrierInit):
        _single(cg, "fence.mbarrier_init.release.cluster;")


@lower(ops.MbarrierExpect)
def _expect(cg: CodeGen, op: ops.MbarrierExpect) -> None:
    _single(cg, f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {op.bytes};",
            [("r", _address(cg, cg.scalar(op.barrier)))])


@lower(ops.MbarrierArrive)
def _arrive(cg: CodeGen, op: ops.MbarrierArrive) -> None:
    _first(cg, "mbarrier.arrive.shared::cta.b64 _, [$0];",
           [("r", _address(cg, cg.scalar(op.barrier)))])


@lower(ops.RemoteArrive)
def _remote_arrive(cg: CodeGen, op: ops.RemoteArrive) -> None:
    # With .release.cluster every arrival would wait for all of the thread's stores (MEMBAR).
    there = remote(cg, _address(cg, cg.scalar(op.barrier)), cg.scalar(op.rank))
    _first(cg, "mbarrier.arrive.shared::cluster.b64 _, [$0];", [("r", there)])


@lower(ops.MbarrierWait)
def _wait(cg: CodeGen, op: ops.MbarrierWait) -> None:
    if cg.checks is not None:
        cg.checks.wait(op, _address(cg, cg.scalar(op.barrier)), cg.scalar(op.parity))
        return
    text = "{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; " \
        "@p bra D; bra W; D: }"
    cg.e.asm(text, "r,r", (_address(cg, cg.scalar(op.barrier)), cg.scalar(op.parity)), (),
             convergent=True)


# ---- TMA
@lower(ops.PrefetchTensormap)
def _prefetch(cg: CodeGen, op: ops.PrefetchTensormap) -> None:
    _single(cg, "prefetch.tensormap [$0];", [("l", cg.scalar(op.map))])


@lower(ops.TmaLoad, ops.TmaMulticast)
def _load(cg: CodeGen, op: ops.TmaLoad | ops.TmaMulticast) -> None:
    rank = len(op.coordinates)
    text = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    more: list[tuple[str, Reg]] = []
    if isinstance(op, ops.TmaMulticast):
        text += ".multicast::cluster"
        more.append(("h", cg.e.convert("trunc", cg.scalar(op.mask), "i16")))
    if op.eviction not in ("", "evict_normal"):
        text += ".L2::cache_hint"
        more.append(("l", cache_policy(cg, op.eviction)))
    barrier = _address(cg, cg.scalar(op.barrier))
    at = [cg.scalar(v) for v in op.coordinates]
    places = ", ".join(f"${i}" for i in range(3, 3 + rank))
    last = "".join(f", ${3 + rank + i}" for i in range(len(more)))
    for offset, where in _boxes(cg, op, op.buffer, at):
        _single(cg, f"{text} [$0], [$1, {{{places}}}], [$2]{last};",
                [("r", _address(cg, cg.scalar(op.buffer), offset)), ("l", cg.scalar(op.map)),
                 ("r", barrier), *(("r", c) for c in where), *more])


@lower(ops.TmaStore)
def _store(cg: CodeGen, op: ops.TmaStore) -> None:
    e, rank = cg.e, len(op.coordinates)
    t, rows = op.map_type(), op.map_type().tile_shape[0]
    at = [cg.scalar(v) for v in op.coordinates]
    pointer, number = cg.scalar(op.buffer), _in_warpgroup(cg)
    if op.parts > 1:
        # Warpgroup i has part i; in further ones no thread has the number 0.
        part = cg.warpgroup()
        row = rank - t.layout.rank
        at[row] = e.binary("add", at[row], e.int_op("mul", part, rows))
        assert isinstance(op.buffer.type, MemDesc)
        step = e.int_op("mul", part, buffer_offset(op.buffer.type, (rows, 0)))
        pointer = e.new(f"getelementptr i8, {pointer.elem} {pointer.ref}, i32 {step.ref}",
                        pointer.elem)
    if op.parts * WARPGROUP < 32 * cg.num_warps:
        out = e.compare("uge", cg.thread(), e.const(op.parts * WARPGROUP, "i32"))
        number = e.select(out, e.const(1, "i32"), number)
    places = ", ".join(f"${i}" for i in range(2, 2 + rank))
    name, kind = ("cp.reduce", f".{op.reduce}") if op.reduce else ("cp", "")
    for offset, where in _boxes(cg, op, op.buffer, at):
        _first(cg, f"{name}.async.bulk.tensor.{rank}d.global.shared::cta{kind}.tile.bulk_group "
               f"[$0, {{{places}}}], [$1];",
               [("l", cg.scalar(op.map)), ("r", _address(cg, pointer, offset)),
                *(("r", c) for c in where)], number)


def _boxes(cg: CodeGen, op: TmaOp, buffer: Value, at: Sequence[Reg]
           ) -> list[tuple[int, list[Reg]]]:
    """Each box of a copy: its place in the buffer in bytes, and its coordinates as PTX has them,
    the last dimension first."""
    boxes, t, out = tma_boxes(op.map_type()), buffer.type, []
    assert isinstance(t, MemDesc)
    for i in range(boxes.count):
        column = i * boxes.box[-1]
        last = cg.e.int_op("add", at[-1], column)
        offset = buffer_offset(t, (0, column)) if column else 0
        out.append((offset, [last, *reversed(at[:-1])]))
    return out


@lower(ops.TmaStoreCommit)
def _commit(cg: CodeGen, op: ops.TmaStoreCommit) -> None:
    _first(cg, "cp.async.bulk.commit_group;")


@lower(ops.TmaStoreWait)
def _store_wait(cg: CodeGen, op: ops.TmaStoreWait) -> None:
    read = ".read" if op.read else ""
    _first(cg, f"cp.async.bulk.wait_group{read} {op.pending};")
