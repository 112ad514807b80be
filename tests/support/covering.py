"""Covering sets: few configurations in which every pair, or triple, of values meets."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

CANDIDATES = 40


def covering(factors: Mapping[str, Sequence[Any]], strength: int = 2, seed: int = 0,
             candidates: int = CANDIDATES) -> list[dict[str, Any]]:
    """Rows such that any values of any `strength` factors occur together in one of them.

    Greedy: each row holds the first combination that is still missing, and is the best of a few
    random ones with it. The same seed gives the same rows.
    """
    rng = np.random.default_rng(seed)
    names = list(factors)
    sizes = [len(factors[name]) for name in names]
    groups = list(itertools.combinations(range(len(names)), strength))

    def met(row: Sequence[int]) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
        return {(group, tuple(row[g] for g in group)) for group in groups}

    missing = {(group, values) for group in groups
               for values in itertools.product(*(range(sizes[g]) for g in group))}
    order = sorted(missing, reverse=True)
    rows = []
    while missing:
        while order[-1] not in missing:
            order.pop()
        group, values = order[-1]
        drawn: Iterable[list[int]] = rng.integers(0, sizes, (candidates, len(sizes))).tolist()
        best: list[int] = []
        gain = 0
        for row in drawn:
            for g, value in zip(group, values, strict=True):
                row[g] = value
            count = len(met(row) & missing)
            if count > gain:
                best, gain = row, count
        missing -= met(best)
        rows.append({name: factors[name][k] for name, k in zip(names, best, strict=True)})
    return rows
