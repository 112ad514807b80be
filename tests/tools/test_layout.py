"""tilec-layout: its text, its SVG, its errors."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from tilec.ir.fragment import fragment
from tilec.ir.layouts import Blocked, Mma, default_blocked
from tilec.tools.layout import draw_svg, holders, main, parse_shape

BLOCKED = (
    "blocked<{sizePerThread = [1, 2], threadsPerWarp = [8, 4], warpsPerCTA = [1, 1], "
    "order = [1, 0]}>"
)


def test_prints_bases_and_grid(capsys):
    assert main([BLOCKED, "8x8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == BLOCKED
    assert lines[2:6] == [
        "register: (0, 1)",
        "lane: (0, 2), (0, 4), (1, 0), (2, 0), (4, 0)",
        "warp: -",
        "-> dim0[8], dim1[8]",
    ]
    assert lines[6] == "1 warp, 2 registers a thread, 1 copy of each element"
    assert lines[8] == "warp/lane:register of each element"
    grid = [line.split() for line in lines[9:]]
    assert grid == [[f"0/{4 * r + c // 2}:{c % 2}" for c in range(8)] for r in range(8)]


def test_a_grid_can_be_cut(capsys):
    assert main([BLOCKED, "64x8", "--rows", "2", "--cols", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "(64x8 in all; --rows and --cols show more)"
    assert lines[-3].split() == ["0/0:0", "0/0:1", "0/1:0"]


def test_odd_and_padded_extents_are_named(capsys):
    one = "blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [2], order = [0]}>"
    assert main([one, "96"]) == 0
    out = capsys.readouterr().out
    assert "dim0: 96 = 3 outer parts of 32" in out and "8 copies of each element" in out
    assert main([one, "100"]) == 0
    assert "dim0: 100 is padded to 128" in capsys.readouterr().out


def test_shared_layouts_show_offsets(capsys):
    assert (
        main(["swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 4, order = [1, 0]}>", "4x4"]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert "16 elements in shared memory" in lines
    grid = [list(map(int, line.split())) for line in lines[-4:]]
    assert grid == [[4 * r + (c ^ r) for c in range(4)] for r in range(4)]


def test_three_dimensions_are_drawn_as_planes(capsys):
    layout = default_blocked((2, 4, 4), 1)
    assert main([str(layout), "2x4x4"]) == 0
    out = capsys.readouterr().out
    assert "[0, :, :]" in out and "[1, :, :]" in out


def test_svg_has_a_cell_for_every_element(tmp_path):
    path = tmp_path / "tile.svg"
    assert main([str(Mma(2, (2, 1), (16, 8))), "32x8", "--svg", str(path)]) == 0
    root = ElementTree.parse(path).getroot()
    rects = [e for e in root if e.tag.endswith("rect")]
    texts = [e.text for e in root if e.tag.endswith("text")]
    assert len(rects) == len(set(texts)) == 32 * 8
    assert len({re.match(r"hsl\((\d+)", e.get("fill")).group(1) for e in rects}) == 2
    assert ElementTree.fromstring(draw_svg(default_blocked((8,), 1), (8,))).get("width") == "512"


def test_holders_reports_the_first_copy():
    held = fragment((4,), Blocked((1,), (32,), (2,), (0,)))
    assert holders(held) == {(i,): (0, i, 0) for i in range(4)}


@pytest.mark.parametrize(
    ("layout", "shape", "message"),
    [
        (BLOCKED, "8x", "positive extents joined by x"),
        (BLOCKED, "8x0", "positive extents joined by x"),
        (BLOCKED, "8", "rank 2"),
        (BLOCKED.replace("[8, 4]", "[8, 8]"), "8x8", "must multiply to 32"),
        ("blokced<{}>", "8", "blokced"),
        ("blocked<{", "8", "<layout>"),
        ("nvmma_shared<{swizzleBytes = 128, transposed = false, elementBits = 16}>", "8x32", "64"),
    ],
)
def test_bad_input_ends_with_a_message(capsys, layout, shape, message):
    assert main([layout, shape]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("tilec-layout: ") and message in captured.err


def test_an_unwritable_svg_is_reported(capsys, tmp_path):
    assert main([BLOCKED, "8x8", "--svg", str(tmp_path / "no" / "x.svg")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_parse_shape():
    assert parse_shape("16x8") == (16, 8) and parse_shape("1000") == (1000,)
