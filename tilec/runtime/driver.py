"""`driver.active`: the GPU, as Triton's users ask for it; without one, what kernels are compiled
for, with one multiprocessor."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from tilec import knobs
from tilec.errors import ToolError
from tilec.runtime import device
from tilec.runtime.bench import do_bench
from tilec.runtime.interface import GPUTarget
from tilec.target import DEFAULT, Target


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise ToolError("torch is not installed, and its devices were asked for", None,
                        "pip install torch") from None


class Utils:
    """`driver.active.utils`."""

    def get_device_properties(self, index: int) -> dict[str, int]:
        """Of a GPU: bytes of shared memory and 32-bit registers that a CTA may have,
        multiprocessors, the threads of a warp, clock rates in kHz and the width of the memory bus
        in bits (0 without a GPU)."""
        target = _target(index)
        found = {"max_shared_mem": target.max_shared, "max_num_regs": target.sm_registers,
                 "warpSize": target.warp_size}
        if not device.gpu_available():
            return found | {"multiprocessor_count": 1, "sm_clock_rate": 0, "mem_clock_rate": 0,
                            "mem_bus_width": 0}
        return found | {"multiprocessor_count": device.multiprocessors(index),
                        "sm_clock_rate": device.attribute(index, "CLOCK_RATE"),
                        "mem_clock_rate": device.attribute(index, "MEMORY_CLOCK_RATE"),
                        "mem_bus_width": device.attribute(index, "GLOBAL_MEMORY_BUS_WIDTH")}


class Driver:
    """What `driver.active` is."""

    utils = Utils()

    @staticmethod
    def is_active() -> bool:
        """Whether there is a GPU."""
        return device.gpu_available()

    def get_current_device(self) -> int:
        """The ordinal of the current GPU; 0 without one."""
        return device.current_device() if device.gpu_available() else 0

    def set_current_device(self, index: int) -> None:
        """Make a GPU the current one, torch's too if torch is there."""
        if "torch" in sys.modules:
            _torch().cuda.set_device(index)
        else:
            device.use(index)

    def get_current_stream(self, index: int | None = None) -> int:
        """The raw handle of the current stream; 0 without a GPU."""
        if not device.gpu_available():
            return 0
        return device.current_stream(device.current_device() if index is None else index)

    def get_current_target(self) -> GPUTarget:
        """What kernels are compiled for now. Without a GPU its kind is "cpu", which runs them: by
        it libraries say where their tensors are."""
        target = GPUTarget.of(_target(self.get_current_device()))
        return target if device.gpu_available() else target._replace(backend="cpu")

    def get_device_capability(self, index: int | None = None) -> tuple[int, int]:
        """Such as (9, 0)."""
        return divmod(_target(self.get_current_device() if index is None else index).sm, 10)

    def get_device_interface(self) -> Any:
        """`torch.cuda`; `torch.cpu` without a GPU. ToolError without torch."""
        return _torch().cuda if device.gpu_available() else _torch().cpu

    def get_active_torch_device(self) -> Any:
        """The current GPU, or the CPU, as a device of torch. ToolError without torch."""
        return _torch().device("cuda", self.get_current_device()) \
            if device.gpu_available() else _torch().device("cpu")

    def get_benchmarker(self) -> Callable[..., Any]:
        """`tilec.testing.do_bench`."""
        return do_bench

    def get_empty_cache_for_benchmark(self) -> Any:
        """A tensor of 256 MiB, whose being written empties the caches."""
        return _torch().empty(1 << 26, dtype=_torch().int32,
                              device=self.get_active_torch_device())

    def clear_cache(self, cache: Any) -> None:
        """Write such a tensor."""
        cache.zero_()


def _target(index: int) -> Target:
    if not knobs.target and device.gpu_available():
        return Target.parse(device.target_of(index))
    return Target.parse(knobs.target or DEFAULT)


active = Driver()


def set_allocator(allocator: Callable[[int, int, int | None], Any]) -> None:
    """Taken and not used: no kernel needs memory beside its arguments."""
