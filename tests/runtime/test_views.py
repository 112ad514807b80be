"""What an allocation is: the memory behind a view, for arrays of any kind at every level."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import tilec
import tilec.language as tl
from tests.runtime.support import from_text
from tilec import errors, knobs
from tilec.errors import InterpreterError, SimulatorError

LEVELS = knobs.RUN_LEVELS
HALO = """
@tilec.jit
def halo(x, y, first, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.load(x + first - i) * 2)

@tilec.jit
def spread(x, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x - i, tl.load(x + i + 1) + 10)
"""


class Storage:
    """As torch's untyped storages are."""

    def __init__(self, array):
        self.array = array

    def data_ptr(self):
        return self.array.ctypes.data

    def nbytes(self):
        return self.array.nbytes


class Tensor:
    """What numpy's view of a tensor of torch has as its base."""

    def __init__(self, whole, view):
        self.whole, self.view = whole, view
        self.__array_interface__ = view.__array_interface__

    def untyped_storage(self):
        return Storage(self.whole)


def viewed(kind: str, whole: np.ndarray, part: slice) -> np.ndarray:
    """A view of a part of an array, such that the rest is behind it."""
    match kind:
        case "slice":
            return whole[part]
        case "slice of a slice":
            return whole[1:][part.start - 1:part.stop - 1] if part.step is None else whole[part]
        case "cast":
            return whole[part].view(np.int32).view(np.float32)
        case "tensor":
            return np.asarray(Tensor(whole, whole[part]))
        case "strides":
            return as_strided(whole[part], whole[part].shape, whole[part].strides)
    return np.frombuffer(memoryview(whole), np.float32)[part]


KINDS = ("slice", "slice of a slice", "cast", "tensor", "strides", "buffer")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS)
def test_halos_are_read(kind, level, capsys):
    """And noted once a kernel, with line, argument and range."""
    halo = kernel("halo")
    rng = np.random.default_rng(5)
    whole = rng.standard_normal(21).astype(np.float32)
    x = viewed(kind, whole, slice(9, 17))
    for first in (0, 5):
        y = np.full(9, np.nan, np.float32)
        with knobs.scope(run=level):
            halo[(1,)](x, y, first, B=9)
        np.testing.assert_array_equal(y, whole[9 + first - np.arange(9)] * 2)
    noted = capsys.readouterr().err.splitlines()
    said = [line for line in noted if "outside of the view" in line]
    assert len(said) == (level != "ptx")
    for line in said:
        assert line == (f"tilec: {halo.file}:5: `halo` reads x at -8 to -1, outside of the view of "
                        "8 elements that it got, inside of the memory behind it; mask these off "
                        "if they are not meant")


def kernel(name: str):
    """A kernel of its own file, so that its notes have not been made before."""
    return from_text(HALO if name == "spread" else HALO.partition("\n\n")[0])


@pytest.mark.parametrize("level", LEVELS)
def test_a_reversed_view(level):
    """Its pointer is to the last element; the others lie before it."""
    whole = np.arange(12, dtype=np.float32)
    y = np.full(4, np.nan, np.float32)
    with knobs.scope(run=level):
        kernel("halo")[(1,)](whole[::-1], y, 0, B=4)
        np.testing.assert_array_equal(y, [22, 20, 18, 16])
        with pytest.raises((InterpreterError, SimulatorError)):
            kernel("halo")[(1,)](whole[::-1], y, 1, B=4)


@pytest.mark.parametrize("level", LEVELS)
def test_an_empty_view(level):
    """It has no elements, and memory behind it."""
    whole = np.arange(12, dtype=np.float32)
    empty = whole[:0]
    at = (empty.ctypes.data - whole.ctypes.data) // 4
    y = np.full(4, np.nan, np.float32)
    with knobs.scope(run=level):
        kernel("halo")[(1,)](empty, y, 11 - at, B=4)
        np.testing.assert_array_equal(y, [22, 20, 18, 16])
        for x, first in ((empty, 12 - at), (np.zeros(0, np.float32), 3)):
            with pytest.raises((InterpreterError, SimulatorError)):
                kernel("halo")[(1,)](x, y, first, B=4)


@pytest.mark.parametrize("level", LEVELS)
def test_programs_that_share_what_is_behind_a_view(level):
    """Reads past it and writes before it, in many programs; conflicts are seen there, too."""
    whole = np.arange(33, dtype=np.float32)
    want = whole.copy()
    want[8:0:-1] = whole[9:17] + 10
    with knobs.scope(run=level):
        kernel("spread")[(4,)](whole[8:9], B=2)
    np.testing.assert_array_equal(whole, want)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first, side", [(-5, "before"), (12, "past")])
def test_outside_of_the_memory_is_an_error(kind, level, first, side):
    whole = np.zeros(21, np.float32)
    x, y = viewed(kind, whole, slice(9, 17)), np.full(8, 7, np.float32)
    with knobs.scope(run=level), pytest.raises((InterpreterError, SimulatorError)) as e:
        kernel("halo")[(1,)](x, y, first, B=8)
    text = str(e.value)
    assert side in text and "tl.load(x + first - i)" in text
    assert level == "ptx" or "the memory that x is a view of (8 elements)" in text
    assert (y == 7).all()


@pytest.mark.parametrize("level", LEVELS)
def test_an_array_of_its_own(level):
    """Nothing is behind it: the message names the array."""
    with knobs.scope(run=level), pytest.raises((InterpreterError, SimulatorError)) as e:
        kernel("halo")[(1,)](np.zeros(8, np.float32), np.zeros(8, np.float32), 8, B=8)
    assert level == "ptx" or "reads 1 element past x (8 elements)" in str(e.value)


def test_two_arguments_of_one_memory():
    """Each view's end is seen, though they share an allocation."""
    errors._noted.clear()
    whole = np.arange(16, dtype=np.float32)
    kernel("halo")[(1,)](whole[4:8], whole[8:12], 0, B=4)
    np.testing.assert_array_equal(whole[8:12], [8, 6, 4, 2])
    np.testing.assert_array_equal(np.delete(whole, range(8, 12)),
                                  np.delete(np.arange(16), range(8, 12)))


@pytest.mark.parametrize("level", ["tile", "ptx"])
def test_a_descriptor_of_what_is_behind_a_view(level):
    whole = np.arange(64, dtype=np.float32).reshape(8, 8)
    out = np.zeros((4, 8), np.float32)
    with knobs.scope(run=level):
        copied[(1,)](tilec.TensorDescriptor(whole[:2], [4, 8], [8, 1], [4, 8]), out)
    np.testing.assert_array_equal(out, whole[:4])


@tilec.jit
def copied(d, out):
    block = d.load([0, 0])
    i, j = tl.arange(0, 4), tl.arange(0, 8)
    tl.store(out + i[:, None] * 8 + j[None, :], block)
