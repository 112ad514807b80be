"""tilec-layout: prints a layout's F2 bases and draws who holds each element of a tile.

tilec-layout 'blocked<{sizePerThread = [1, 2], ...}>' 8x8 [--svg FILE]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from tilec.errors import ToolError
from tilec.ir.fragment import Fragment, fragment, shared_tile, storage_shape
from tilec.ir.layouts import Layout, RegisterLayout
from tilec.ir.ops.tile import MAX_ELEMENTS
from tilec.ir.parser import parse_layout
from tilec.tools.command import tool

Coords = tuple[int, ...]
Holder = tuple[int, int, int]  # warp, lane, register


@tool("tilec-layout", failure=2)
def main(argv: Sequence[str] | None = None) -> int:
    """The console tool; returns the exit status (2: the layout or the shape cannot be used)."""
    parser = argparse.ArgumentParser(prog="tilec-layout", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("layout", help="a layout in IR text")
    parser.add_argument("shape", help="the tile's extents, e.g. 16x16")
    parser.add_argument("--svg", metavar="FILE", help="also draw the tile as SVG")
    parser.add_argument("--rows", type=int, default=32, help="rows to draw as text (default 32)")
    parser.add_argument("--cols", type=int, default=16, help="columns to draw (default 16)")
    options = parser.parse_args(argv)
    try:
        layout, shape = parse_layout(options.layout), parse_shape(options.shape)
        print(describe(layout, shape))
        print()
        print(draw_text(layout, shape, max(1, options.rows), max(1, options.cols)))
        if options.svg:
            Path(options.svg).write_text(draw_svg(layout, shape), encoding="utf-8")
    except ValueError as error:
        raise ToolError(str(error)) from None
    return 0


def parse_shape(text: str) -> Coords:
    """(16, 8) from "16x8"; ValueError for anything else."""
    parts = text.split("x")
    if not all(p.isascii() and p.isdigit() and int(p) for p in parts):
        raise ValueError(f"a shape is positive extents joined by x, like 16x8; got {text!r}")
    shape = tuple(map(int, parts))
    if math.prod(shape) > MAX_ELEMENTS:
        raise ValueError(f"{text} has more than {MAX_ELEMENTS} elements")
    return shape


def describe(layout: Layout, shape: Coords) -> str:
    """The layout's text, how the extents are stored, and the bases of the linear form."""
    odd, pow2 = storage_shape(shape)
    lines = [str(layout), "", *str(layout.to_linear(pow2)).splitlines()]
    for d, n in enumerate(shape):
        if odd[d] * pow2[d] != n:
            lines.append(f"dim{d}: {n} is padded to {pow2[d]}")
        elif odd[d] > 1:
            lines.append(f"dim{d}: {n} = {odd[d]} outer parts of {pow2[d]}")
    if isinstance(layout, RegisterLayout):
        held = fragment(shape, layout)
        copies = 1 << sum(m.bit_count() for m in held.free_masks.values())
        lines.append(
            f"{count(layout.num_warps, 'warp')}, {count(held.num_registers, 'register')} a thread, "
            f"{copies} {'copies' if copies > 1 else 'copy'} of each element")
    else:
        lines.append(f"{shared_tile(shape, layout).num_elements} elements in shared memory")
    return "\n".join(lines)


def holders(held: Fragment) -> dict[Coords, Holder]:
    """The first (warp, lane, register) that holds each element of the tile."""
    first: dict[Coords, Holder] = {}
    warps = range(held.linear.in_size("warp"))
    for warp, lane, register in product(warps, range(32), range(held.num_registers)):
        first.setdefault(held.coords(register, lane, warp), (warp, lane, register))
    return first


def draw_text(layout: Layout, shape: Coords, rows: int, columns: int) -> str:
    """A text grid, one cell an element: warp/lane:register, or the element offset."""
    cells = _cells(layout, shape)
    key = "warp/lane:register" if isinstance(layout, RegisterLayout) else "element offset"
    out = [f"{key} of each element"]
    for prefix, height, width in _planes(shape):
        if prefix:
            out.append(f"[{', '.join(map(str, prefix))}, :, :]")
        shown = [[cells[_at(prefix, r, c, len(shape))] for c in range(min(width, columns))]
                 for r in range(min(height, rows))]
        size = max(len(cell) for row in shown for cell in row)
        out += [" ".join(cell.rjust(size) for cell in row) for row in shown]
        if height > rows or width > columns:
            out.append(f"({height}x{width} in all; --rows and --cols show more)")
    return "\n".join(out)


def draw_svg(layout: Layout, shape: Coords) -> str:
    """An SVG of the tile, a hue for each warp and a shade for each lane (or by bank in memory)."""
    cells, colours = _cells(layout, shape), _colours(layout, shape)
    width, height, gap = 64, 24, 12
    body: list[str] = []
    top = right = 0
    for prefix, rows, columns in _planes(shape):
        for r, c in product(range(rows), range(columns)):
            at = _at(prefix, r, c, len(shape))
            x, y = c * width, top + r * height
            body.append(
                f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{colours[at]}" '
                f'stroke="#444"/><text x="{x + width // 2}" y="{y + 16}">{cells[at]}</text>')
        top += rows * height + gap
        right = max(right, columns * width)
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{right}" height="{top - gap}" '
            'font-family="monospace" font-size="11" text-anchor="middle">')
    return "\n".join([head, *body, "</svg>", ""])


def _planes(shape: Coords) -> Iterator[tuple[Coords, int, int]]:
    """(leading coordinates, rows, columns) of every two-dimensional slice."""
    height, width = ((1, 1, *shape))[-2:]
    for prefix in product(*map(range, shape[:-2])):
        yield prefix, height, width


def _at(prefix: Coords, row: int, column: int, rank: int) -> Coords:
    return (*prefix, row, column) if rank > 1 else (column,)


def _cells(layout: Layout, shape: Coords) -> dict[Coords, str]:
    if isinstance(layout, RegisterLayout):
        found = holders(fragment(shape, layout))
        return {at: f"{w}/{lane}:{r}" for at, (w, lane, r) in found.items()}
    tile = shared_tile(shape, layout)
    return {at: str(tile.offset(at)) for at in product(*map(range, shape))}


def _colours(layout: Layout, shape: Coords) -> dict[Coords, str]:
    if isinstance(layout, RegisterLayout):
        held = fragment(shape, layout)
        warps = held.linear.in_size("warp")
        return {at: f"hsl({360 * warp // warps}, 70%, {90 - lane}%)"
                for at, (warp, lane, _) in holders(held).items()}
    tile = shared_tile(shape, layout)
    # 16-byte groups are what swizzles move; colour by the group of four 4-byte elements.
    return {at: f"hsl({45 * (tile.offset(at) // 4 % 8)}, 70%, 80%)"
            for at in product(*map(range, shape))}


def count(n: int, what: str) -> str:
    """`1 warp`, `2 warps`."""
    return f"{n} {what}" + "s" * (n != 1)


if __name__ == "__main__":
    sys.exit(main())
