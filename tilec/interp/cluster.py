"""Clusters: programs that run in turns, reach each other's shared memory, and must be ordered where
they do: by cluster barriers, or for what they read themselves by mbarriers (`interp/agents.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from tilec.eval.dtypes import Array
from tilec.interp.agents import PUBLIC, Agent, History
from tilec.interp.asynchrony import Clock, End, join
from tilec.interp.blame import where
from tilec.interp.buffers import View
from tilec.interp.control import defined
from tilec.interp.frame import Data, Frame
from tilec.interp.machine import Machine, interp_rules
from tilec.interp.waiting import Turns
from tilec.ir import ops
from tilec.ir.core import Op, Value
from tilec.ir.ops.gpu import allocation

TOGETHER = 1 << 17  # clusters that may wait for each other


class _Visit(NamedTuple):
    """An access to a program's shared memory by another one; it is over when any of the ends is
    known."""

    op: Op
    name: str
    ends: tuple[End, ...]


class Member(Agent):
    """A program of a running cluster. visits: what others have done in its memory; arrived: how
    many cluster barriers it has come to."""

    orders = "cluster barrier or mbarrier", (
        "put a gpu.cluster_barrier between; for what a program itself has read, an arrival at the "
        "other one's mbarrier, and its wait, will do")

    def __init__(self, cluster: Cluster, m: Machine, name: str) -> None:
        assert m.turns is not None and m.turns.current is not None
        super().__init__(name, m.num_warps, cluster.history, m.turns, m.copies.random,
                         [m.asynchrony])
        self.cluster, self.machine = cluster, m
        self.coroutine = m.turns.current
        self.visits: list[_Visit] = []
        self.arrived = 0
        self.over = False

    def meet(self, op: Op) -> None:
        """All programs of the cluster wait for each other; those that have ended are not waited
        for."""
        self.barrier(whole=True)
        self.arrived += 1
        told = self.cluster.told.setdefault(self.arrived, {})
        join(told, self.now)
        missing = self.cluster.missing
        self.wait(op, lambda: bool(missing(self.arrived)),
                  lambda: f"{missing(self.arrived)} has not come to its cluster barrier")
        join(self.now, told)
        self.whole = dict(self.now)

    def leave(self) -> None:
        """The program ends, and with it its shared memory."""
        known = dict(self.now)
        for clock in self.elected.values():
            join(known, clock)
        for visit in self.visits:
            if not any(known.get(agent, 0) >= time for agent, time in visit.ends):
                raise self.machine.error(
                    visit.op, f"{self.name} ends, and with it its shared memory, to which "
                    f"{visit.op.name} of {visit.name} may still have access",
                    "end with a gpu.cluster_barrier")
        self.over = True


class Cluster:
    """The programs of one cluster, by rank; None before a program has begun. told: what those know
    who have come to each cluster barrier."""

    def __init__(self, m: Machine, first: int, size: int) -> None:
        self.names = [m.program_name(first + rank) for rank in range(size)]
        self.first = first
        self.members: list[Member | None] = [None] * size
        self.history = History()
        self.told: dict[int, Clock] = {}

    def join(self, m: Machine, program: int) -> Member:
        """A program of it begins, on a machine of its own."""
        rank = program - self.first
        made = self.members[rank] = Member(self, m, self.names[rank])
        return made

    def missing(self, barrier: int) -> str:
        """A program that has not come to this cluster barrier, and has not ended."""
        return next((name for name, m in zip(self.names, self.members, strict=True)
                     if m is None or m.arrived < barrier and not m.over), "")


def reach(m: Machine, frame: Frame, op: Op, rank: Value | int) -> Machine:
    """The machine of the program of this rank, whose shared memory an op is about to access."""
    if isinstance(rank, Value):
        rank = int(defined(m, frame, op, rank, "the rank")[0])
    assert m.member is not None and m.role is not None
    cluster = m.member.cluster
    if not 0 <= rank < len(cluster.members):
        raise m.error(op, f"the rank is {rank}, the cluster has {len(cluster.members)} programs",
                      "ranks count from 0; num_ctas says how many programs a cluster has")
    peer = cluster.members[rank]
    if peer is m.member:
        return m
    if peer is None or m.role.known(op).get(peer, 0) < 1:
        raise m.error(op, f"{op.name} of {m.role.name} reaches into the shared memory of "
                      f"{cluster.names[rank]}, and nothing says that it has begun",
                      "a gpu.cluster_barrier must stand before, after mbarriers are set up")
    if peer.over:
        raise m.error(op, f"{op.name} of {m.role.name} reaches into the shared memory of "
                      f"{peer.name}, which has ended", "end with a gpu.cluster_barrier")
    return peer.machine


def view_in(m: Machine, op: Op, value: Value, peer: Machine) -> View:
    """What lies in the other program where a buffer or mbarrier lies here."""
    here = m.buffers[value]
    if peer is m:
        return here
    there = peer.buffers.get(allocation(value).result)
    if there is None:
        raise m.error(op, f"{op.name} uses a buffer that the other program has not allocated",
                      "allocate buffers before branches")
    return View(there.buffer, there.buffer.home, here.stage, here.order)


def visit(m: Machine, op: Op, peer: Machine, *ends: End) -> None:
    """Note that an op has access to another program's memory until one of the ends is known."""
    assert m.role is not None
    if peer is not m:
        assert peer.member is not None
        peer.member.visits.append(_Visit(op, m.role.name, ends))


@interp_rules(ops.ClusterRank)
def _(m: Machine, frame: Frame, op: ops.ClusterRank) -> Sequence[Data]:
    return (((frame.programs % m.num_ctas).astype(np.int32), None),)


@interp_rules(ops.ClusterBarrier)
def _(m: Machine, frame: Frame, op: ops.ClusterBarrier) -> None:
    assert m.member is not None
    m.meet(frame)
    m.member.meet(op)


@interp_rules(ops.RemoteLoad)
def _(m: Machine, frame: Frame, op: ops.RemoteLoad) -> Sequence[Data]:
    peer = reach(m, frame, op, op.rank)
    assert m.role is not None
    view = view_in(m, op, op.buffer, peer)
    at = frame if peer is m else view.home
    row, stage = (int(i[0]) for i in view.place(at))
    for copied in peer.copies.under_way:
        if copied.view.buffer is view.buffer and (copied.rows[0], copied.stage[0]) == (row, stage):
            raise m.error(op, f"{op.name} reads a buffer into which {copied.op.name} at "
                          f"{where(copied.op)} may still be copying",
                          "its program must wait for that copy, and then all at a cluster barrier")
    m.role.access(m, at, op, view, False, m.role.next_end(PUBLIC))
    visit(m, op, peer, m.role.next_end(PUBLIC))
    return (view.read(at),)


def run_clusters(m: Machine, order: Iterable[Array], arguments: Sequence[Data], together: bool
                 ) -> None:
    """Run the clusters of programs in `order`, one after another, or all `together`."""
    size = m.num_ctas
    random = np.random.default_rng(None if m.seed is None else m.seed)
    clusters: dict[int, Cluster] = {}

    def body(program: int) -> None:
        own = m.fork()
        own.cluster = clusters[program // size]
        own.run(np.array([program]), arguments)

    found = (dict.fromkeys((piece // size).tolist()) for piece in order)
    # No more than these could begin as threads, which an error says.
    whole = list(islice(chain.from_iterable(found), TOGETHER)) if together else []
    for group in [whole] if together else ([c] for piece in found for c in piece):
        clusters.clear()
        clusters.update((c, Cluster(m, c * size, size)) for c in group)
        programs = [c * size + rank for c in group for rank in range(size)]
        m.turns = Turns(m.program_name, lambda: m.memory.changes)
        m.turns.run(random.permutation(programs).tolist(), body)
