"""Random numbers that keep no state: Philox, a function of a key and a counter (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011), and what is made of its words.

Written in the kernel language; `tl.random` is this module.
"""

from __future__ import annotations

from tilec.frontend.function import function
from tilec.language import casting, creation, dtypes, math, selection, values
from tilec.language.control import static_range

# Of words of 32 and 64 bits: what the key grows by in each round, and the round's two factors.
KEY_STEPS = values.constexpr({32: (0x9E3779B9, 0xBB67AE85),
                              64: (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)})
FACTORS = values.constexpr({32: (0xD2511F53, 0xCD9E8D57),
                            64: (0xD2E7470EE14C6C93, 0xCA5A826395121157)})
UNIFORM_SCALES = values.constexpr({32: 4.6566127342e-10, 64: 1.0842020432385337e-19})
TWO_PI = values.constexpr(6.283185307179586)
LEAST_UNIFORM = values.constexpr(1e-7)  # the logarithm of less would be too large


@function
def philox_impl(c0, c1, c2, c3, k0, k1, n_rounds):
    """`n_rounds` rounds of Philox on a counter of four words under a key of two, all uint32 or all
    uint64: four words, of the shape that all of these broadcast to."""
    bits: values.constexpr = c0.dtype.primitive_bitwidth
    none = (c0 ^ c1 ^ c2 ^ c3 ^ k0 ^ k1) * 0
    c0, c1, c2, c3 = c0 ^ none, c1 ^ none, c2 ^ none, c3 ^ none
    for _ in static_range(n_rounds):
        a, b = FACTORS[bits]
        high0, high2 = math.umulhi(c0, a), math.umulhi(c2, b)
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, c2 * b, high0 ^ c3 ^ k1, c0 * a
        k0 += KEY_STEPS[bits][0]
        k1 += KEY_STEPS[bits][1]
    return c0, c1, c2, c3


@function
def philox(seed, c0, c1, c2, c3, n_rounds=10):
    """Four words of Philox4x32, or of Philox4x64 where c0 has 64 bits.

    seed: an integer, the key. c0 .. c3: the counter, tiles that broadcast.
    """
    key = creation.to_tensor(seed).to(dtypes.uint64)
    c0 = creation.to_tensor(c0)
    if c0.dtype.primitive_bitwidth == 64:
        word = dtypes.uint64
        k0, k1 = key, (key * 0).to(word)
    else:
        word = dtypes.uint32
        k0, k1 = key.to(word), (key >> 32).to(word)
    return philox_impl(casting.cast(c0, word), casting.cast(c1, word), casting.cast(c2, word),
                       casting.cast(c3, word), k0, k1, n_rounds)


@function
def randint4x(seed, offset, n_rounds=10):
    """Four tiles of random uint32, of the shape of `offset`, integers that number them."""
    offset = creation.to_tensor(offset)
    low = offset.to(dtypes.uint32)
    high = (offset >> 32).to(dtypes.uint32) if offset.dtype.primitive_bitwidth == 64 else low * 0
    return philox(seed, low, high, low * 0, low * 0, n_rounds)


@function
def randint(seed, offset, n_rounds=10):
    """A tile of random uint32, of the shape of `offset`, integers that number them. Where four are
    wanted, `randint4x` gives them at the cost of one."""
    return randint4x(seed, offset, n_rounds)[0]


@function
def uint_to_uniform_float(x):
    """Random integers of 32 or 64 bits as float32, uniform in [0, 1)."""
    bits: values.constexpr = x.dtype.primitive_bitwidth
    x = x.to(dtypes.int32 if bits == 32 else dtypes.int64, bitcast=True)
    return selection.where(x < 0, -x - 1, x) * UNIFORM_SCALES[bits]


@function
def rand(seed, offset, n_rounds=10):
    """A tile of float32, uniform in [0, 1), of the shape of `offset`, integers that number them."""
    return uint_to_uniform_float(randint(seed, offset, n_rounds))


@function
def rand4x(seed, offset, n_rounds=10):
    """Four tiles as `rand` gives one."""
    a, b, c, d = randint4x(seed, offset, n_rounds)
    return (uint_to_uniform_float(a), uint_to_uniform_float(b), uint_to_uniform_float(c),
            uint_to_uniform_float(d))


@function
def pair_uniform_to_normal(u1, u2):
    """Two independent normal numbers of two uniform ones (Box and Muller)."""
    radius = math.sqrt(-2.0 * math.log(selection.maximum(LEAST_UNIFORM, u1)))
    angle = TWO_PI * u2
    return radius * math.cos(angle), radius * math.sin(angle)


@function
def randn(seed, offset, n_rounds=10):
    """A tile of float32, normal with mean 0 and deviation 1, of the shape of `offset`, integers
    that number them."""
    a, b, _, _ = rand4x(seed, offset, n_rounds)
    return pair_uniform_to_normal(a, b)[0]


@function
def randn4x(seed, offset, n_rounds=10):
    """Four tiles as `randn` gives one."""
    a, b, c, d = rand4x(seed, offset, n_rounds)
    n0, n1 = pair_uniform_to_normal(a, b)
    n2, n3 = pair_uniform_to_normal(c, d)
    return n0, n1, n2, n3


__all__ = ["pair_uniform_to_normal", "philox", "philox_impl", "rand", "rand4x", "randint",
           "randint4x", "randn", "randn4x", "uint_to_uniform_float"]
