"""What torch itself does with kernels: `wrap_triton`, and whether it finds a Triton."""

from __future__ import annotations

import pytest

from tests.runtime.support import from_text

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("poisoned"),
              pytest.mark.filterwarnings("ignore")]
KERNEL = """
@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x, y = tl.load(x_ptr + offs, mask=mask), tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x + y, mask=mask)
"""


@pytest.mark.parametrize("tuned", (False, True))
def test_wrap_triton(triton, tuned):
    add = from_text(KERNEL, triton=triton, tl=triton.language)
    if tuned:
        add = triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})],
                              ["n"])(add)

    @torch.library.triton_op(f"tilec::add_{tuned}", mutates_args={})
    def total(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        options = {} if tuned else {"BLOCK": 16}
        torch.library.wrap_triton(add)[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](
            x, y, out, x.numel(), **options)
        return out

    x, y = torch.arange(37.0), torch.linspace(-1, 1, 37)
    assert torch.equal(total(x, y), x + y)


def test_a_cpu_is_no_device_of_tritons_to_torch(triton):
    triton_utils = pytest.importorskip("torch.utils._triton")
    triton_utils.has_triton_package.cache_clear()
    assert triton_utils.has_triton_package() and not triton_utils.has_triton()
    assert triton_utils.get_triton_version() >= (3, 4)
