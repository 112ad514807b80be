"""Orders basic blocks so that running the earliest block first makes diverged threads meet again.

The order is a reverse post-order in which a loop's blocks come before the blocks after the loop;
a block then stands after everything that can still reach it without going round a loop.
"""

from __future__ import annotations

from collections.abc import Sequence


def block_order(successors: Sequence[Sequence[int]]) -> list[int]:
    """The blocks reachable from block 0, in scheduling order."""
    rank = {block: i for i, block in enumerate(_reverse_post_order(successors, None))}
    loops = _loops(successors, rank)
    return _reverse_post_order(successors, loops)


def _reverse_post_order(successors: Sequence[Sequence[int]],
                        loops: list[frozenset[int]] | None) -> list[int]:
    """Depth-first; with `loops`, edges that leave most loops are followed first, so end up last."""

    def ordered(block: int) -> list[int]:
        if loops is None:
            return list(successors[block])
        mine = loops[block]
        return sorted(successors[block], key=lambda other: len(mine & loops[other]))

    seen = {0}
    order: list[int] = []
    stack = [(0, iter(ordered(0)))]
    while stack:
        block, rest = stack[-1]
        for following in rest:
            if following not in seen:
                seen.add(following)
                stack.append((following, iter(ordered(following))))
                break
        else:
            order.append(block)
            stack.pop()
    return order[::-1]


def _loops(successors: Sequence[Sequence[int]], rank: dict[int, int]) -> list[frozenset[int]]:
    """For each block the headers of the natural loops that hold it."""
    predecessors: list[list[int]] = [[] for _ in successors]
    for block in rank:
        for following in successors[block]:
            predecessors[following].append(block)
    dominator = _dominators(predecessors, rank)
    member: list[set[int]] = [set() for _ in successors]
    for block in rank:
        for header in successors[block]:
            if rank[header] > rank[block] or not _dominates(header, block, dominator):
                continue
            work = [block]
            member[header].add(header)
            while work:
                inside = work.pop()
                if header not in member[inside]:
                    member[inside].add(header)
                    work.extend(predecessors[inside])
    return [frozenset(m) for m in member]


def _dominators(predecessors: list[list[int]], rank: dict[int, int]) -> dict[int, int]:
    """Immediate dominators (Cooper, Harvey, Kennedy)."""
    idom = {0: 0}
    changed = True
    while changed:
        changed = False
        for block in rank:
            if block == 0:
                continue
            new: int | None = None
            for before in predecessors[block]:
                if before in idom:
                    new = before if new is None else _meet(new, before, idom, rank)
            if new is not None and idom.get(block) != new:
                idom[block] = new
                changed = True
    return idom


def _meet(a: int, b: int, idom: dict[int, int], rank: dict[int, int]) -> int:
    while a != b:
        while rank[a] > rank[b]:
            a = idom[a]
        while rank[b] > rank[a]:
            b = idom[b]
    return a


def _dominates(a: int, b: int, idom: dict[int, int]) -> bool:
    while b != a and b != 0:
        b = idom[b]
    return b == a
