"""A chain of operations in one launch: resize, convert, normalise (vertical fusion).

The steps are jit functions that the kernel takes as constexpr arguments, so that any chain of
them compiles into one kernel with no traffic in between: an image of bytes is read and the planes
that a network wants are written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import support

import tilec
import tilec.language as tl

MEAN = np.array([0.485, 0.456, 0.406])
STD = np.array([0.229, 0.224, 0.225])


# -- steps: a sampler gives the value at a position, the others map values to values ------------

@tilec.jit
def pixel(src_ptr, y, x, channel, width, mask):
    """The bytes at (y, x) of an image stored as (height, width, 3)."""
    return tl.load(src_ptr + (y * width + x) * 3 + channel, mask=mask, other=0).to(tl.float32)


@tilec.jit
def nearest(src_ptr, y, x, channel, height, width, mask):
    """The pixel whose centre is nearest to (y, x)."""
    row = tl.clamp(tl.floor(y + 0.5), 0.0, height - 1.0).to(tl.int32)
    col = tl.clamp(tl.floor(x + 0.5), 0.0, width - 1.0).to(tl.int32)
    return pixel(src_ptr, row, col, channel, width, mask)


@tilec.jit
def bilinear(src_ptr, y, x, channel, height, width, mask):
    """The four pixels around (y, x), weighted by nearness; the border is repeated."""
    y = tl.clamp(y, 0.0, height - 1.0)
    x = tl.clamp(x, 0.0, width - 1.0)
    top = tl.floor(y).to(tl.int32)
    left = tl.floor(x).to(tl.int32)
    below = tl.minimum(top + 1, height - 1)
    right = tl.minimum(left + 1, width - 1)
    fy = y - top.to(tl.float32)
    fx = x - left.to(tl.float32)
    a = pixel(src_ptr, top, left, channel, width, mask)
    b = pixel(src_ptr, top, right, channel, width, mask)
    c = pixel(src_ptr, below, left, channel, width, mask)
    d = pixel(src_ptr, below, right, channel, width, mask)
    upper = a + (b - a) * fx
    return upper + (c + (d - c) * fx - upper) * fy


@tilec.jit
def unit_range(v):
    """Bytes to [0, 1]."""
    return v * (1.0 / 255.0)


@tilec.jit
def symmetric_range(v):
    """Bytes to [-1, 1]."""
    return v * (2.0 / 255.0) - 1.0


@tilec.jit
def standardise(v, mean, std):
    return (v - mean) / std


@tilec.jit
def keep(v, mean, std):
    return v


# -- the kernel ---------------------------------------------------------------------------------

@tilec.jit
def chain_kernel(src_ptr, out_ptr, mean_ptr, std_ptr, src_height, src_width, out_height, out_width,
                 SAMPLE: tl.constexpr, CONVERT: tl.constexpr, NORMALISE: tl.constexpr,
                 BLOCK: tl.constexpr):
    """Programs along axis 0 take BLOCK pixels of the output, those along axis 1 a channel."""
    channel = tl.program_id(1)
    n = out_height * out_width
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    # Pixel centres are at half-integers, in the source as in the output.
    y = ((offs // out_width).to(tl.float32) + 0.5) * (src_height / out_height) - 0.5
    x = ((offs % out_width).to(tl.float32) + 0.5) * (src_width / out_width) - 0.5
    v = SAMPLE(src_ptr, y, x, channel, src_height, src_width, mask)
    v = CONVERT(v)
    v = NORMALISE(v, tl.load(mean_ptr + channel), tl.load(std_ptr + channel))
    tl.store(out_ptr + channel * n + offs, v, mask=mask)


def resize_convert_normalise(src: Any, out: Any, mean: Any, std: Any, sample: Any = bilinear,
                             convert: Any = unit_range, normalise: Any = standardise,
                             block: int = 1024) -> Any:
    """out = normalise(convert(resize(src))), one launch; returns the compiled kernel.

    src: (height, width, 3) uint8. out: (3, height, width) of any float dtype. mean, std: (3,)
    float32. sample, convert, normalise: jit functions with the parameters of those above.
    """
    _, height, width = out.shape
    grid = (tilec.cdiv(height * width, block), 3)
    return chain_kernel[grid](src, out, mean, std, src.shape[0], src.shape[1], height, width,
                              SAMPLE=sample, CONVERT=convert, NORMALISE=normalise, BLOCK=block)


def reference(src: np.ndarray, height: int, width: int, bilinear_taps: bool) -> np.ndarray:
    """The resized image in float64, as (3, height, width) of 0 to 255."""
    y = (np.arange(height) + 0.5) * (src.shape[0] / height) - 0.5
    x = (np.arange(width) + 0.5) * (src.shape[1] / width) - 0.5
    y, x = (np.clip(v, 0, n - 1) for v, n in ((y, src.shape[0]), (x, src.shape[1])))
    if not bilinear_taps:
        rows, cols = (np.floor(v + 0.5).astype(int) for v in (y, x))
        return src[rows][:, cols].transpose(2, 0, 1)
    top, left = np.floor(y).astype(int), np.floor(x).astype(int)
    below, right = np.minimum(top + 1, src.shape[0] - 1), np.minimum(left + 1, src.shape[1] - 1)
    fy, fx = (y - top)[:, None, None], (x - left)[None, :, None]
    upper = src[top][:, left] * (1 - fx) + src[top][:, right] * fx
    lower = src[below][:, left] * (1 - fx) + src[below][:, right] * fx
    return (upper * (1 - fy) + lower * fy).transpose(2, 0, 1)


def main(height: int = 37, width: int = 53) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (61, 47, 3))
    src = support.array(pixels, "uint8")
    mean, std = support.array(MEAN, "float32"), support.array(STD, "float32")
    column = (3, 1, 1)

    out = support.poisoned((3, height, width), "float16")
    resize_convert_normalise(src, out, mean, std)
    expected = reference(pixels, height, width, True) / 255
    expected = (expected - MEAN.reshape(column)) / STD.reshape(column)
    support.check(f"bilinear, unit range, standardised, {support.place()}", out, expected, 2e-3)

    out = support.poisoned((3, height, width), "float32")
    resize_convert_normalise(src, out, mean, std, nearest, symmetric_range, keep)
    expected = reference(pixels, height, width, False) * 2 / 255 - 1
    support.check(f"nearest, symmetric range, {support.place()}", out, expected, 1e-6)


if __name__ == "__main__":
    main()
