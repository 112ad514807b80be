"""Example 13 beyond what it checks itself: as PTX, with the simulator's checks, on what is awkward
for kernels of rows."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from benchmarks.common import load_example
from tilec import TilecError, knobs

example = load_example("13_long_rows")


@pytest.mark.parametrize(("rows", "cols", "dtype", "pitch", "how"), [
    (3, 781, "float16", 800, None),  # rows with a gap between them
    (2, 1000, "bfloat16", 1001, (1, 2, 0, 1)),  # two blocks, rows that begin anywhere
    (2, 2048, "bfloat16", 0, (2, 2, 64, 1)),  # whole blocks
    (3, 1000, "float16", 1001, (1, 2, 64, 4)),  # clusters, whose last program has part of a part
    (2, 2048, "float32", 0, (1, 2, 64, 8)),  # whole parts
    (2, 1100, "bfloat16", 0, (1, 1, 64, 8)),  # parts beyond the row's end
    (2, 1900, "float32", 0, (1, 2, 64, 2)),  # parts of several blocks
    (4, 1, "float32", 0, None),
    (3, 33, "float32", 0, None),
])
@pytest.mark.sample(3)
def test_as_ptx(rows, cols, dtype, pitch, how):
    with knobs.scope(run="ptx", check=True):
        example.check_kernels(rows, cols, dtype, 2e-2 if dtype == "bfloat16" else 2e-3, pitch, how)


def test_strides_and_infinities_as_ptx():
    with knobs.scope(run="ptx", check=True):
        example.check_edges()


def entropy(x, label):
    """The kernel's loss and gradient."""
    loss = np.full(len(x), np.nan, np.float32)
    dx = np.full_like(x, np.nan)
    example.cross_entropy(x, np.array(label), loss, dx)
    return loss, dx


def test_infinite_logits_in_cross_entropy():
    x = np.random.default_rng(5).standard_normal((4, 300)).astype(np.float32)
    x[0, 3] = x[1, 4] = -np.inf
    x[2] = -np.inf
    x[3, 7] = np.inf
    loss, dx = entropy(x, [3, 3, 3, 7])
    assert loss[0] == np.inf and np.isfinite(loss[1]) and np.isnan(loss[2:]).all()
    assert dx[0, 3] == -1.0 and dx[1, 4] == 0.0 and np.isnan(dx[2]).all()
    np.testing.assert_allclose(dx[:2].sum(1), 0.0, atol=1e-5)


def test_ignored_rows_give_nothing():
    x = np.random.default_rng(6).standard_normal((2, 100)).astype(ml_dtypes.bfloat16)
    loss, dx = entropy(x, [example.IGNORE, 99])
    assert loss[0] == 0.0 and (dx[0] == 0).all() and loss[1] > 0.0 and dx[1, 99] < 0


def test_a_label_that_is_no_column_is_reported():
    x = np.zeros((2, 100), np.float32)
    with pytest.raises(TilecError, match="label out of range"):
        entropy(x, [5, 100])


@pytest.mark.parametrize("dtype", [np.float64, np.int16])
def test_types_that_would_lose_values_are_refused(dtype):
    x = np.zeros((2, 100), dtype)
    with pytest.raises(TilecError, match="rows of float16, bfloat16 or float32 are expected"):
        example.softmax(x, np.empty_like(x))
