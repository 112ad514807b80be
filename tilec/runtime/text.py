"""`tilec.load`: a kernel from a .tir file, at any level, to be run at each level below it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import tilec
from tilec import knobs
from tilec.codegen.cubin import sass
from tilec.compiler import IR_LEVELS, Compiled, compile_from
from tilec.errors import BRIEF, Brief, LaunchError, did_you_mean
from tilec.ir.clusters import check_clusters
from tilec.ir.core import Module, Value
from tilec.ir.parser import parse
from tilec.ir.tensor_maps import recipes
from tilec.ir.types import Pointer, Scalar, TensorMap
from tilec.ir.verifier import verify
from tilec.language import dtypes as dt
from tilec.runtime import device, host
from tilec.runtime.arguments import described, handler_of, place_of
from tilec.runtime.launch import Launcher
from tilec.runtime.loading import load as load_on_device
from tilec.runtime.maps import makers
from tilec.runtime.tensor_map import in_simulator, on_device, on_host
from tilec.target import DEFAULT, Target


@BRIEF
def load(path: str | Path) -> TextKernel:
    """The kernel in a .tir file. IRError names the line that is wrong."""
    module = parse(Path(path).read_text(), str(path))
    verify(module)
    return TextKernel(module)


class TextKernel:
    """A kernel that was written as IR. kernel[grid](*args) launches it on a GPU; args in the order
    of its parameters: device arrays, numbers, and for tensor maps device arrays or
    TensorDescriptors."""

    def __init__(self, module: Module) -> None:
        self.module = module
        (self.func,) = module.funcs
        self.name = self.func.name
        self.target = Target.parse(str(module.attributes.get("target", DEFAULT)))
        # Tensor maps that name the pointer they are made of are made by the launch.
        self.params = self.func.args[:len(self.func.args) - len(recipes(self.func))]
        self._launchers: dict[int, Launcher] = {}
        self._brief = Brief(lambda: self.func.loc)

    @cached_property
    def compiled(self) -> Compiled:
        """The compilation down to the cubin."""
        return compile_from(self.module.clone(), self.target)

    @property
    def sass(self) -> str:
        """The cubin, disassembled."""
        assert self.compiled.linked is not None
        return sass(self.compiled.linked.cubin)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return partial(self._launch, grid)

    def run(self, args: Sequence[Any], grid: Any, level: str = "lowered",
            seed: int | None = None) -> None:
        """Run on host arrays, in place, at an IR level from the module's own on down, or "ptx"."""
        with self._brief:
            self._run(args, grid, level, seed)

    def _run(self, args: Sequence[Any], grid: Any, level: str, seed: int | None) -> None:
        extents = host.check_grid(grid)
        check_clusters(self.name, extents, self.module.num_ctas)
        if level == "ptx":
            made, values = self.compiled, self._arguments(args, _simulated_value)
            values += [maker.in_simulator(values, extents) for maker in makers(made.maps)]
            tilec.sim.run(made.ptx, made.name, values, extents, made.threads,
                          shared_bytes=made.shared, seed=seed, check=knobs.check == "1")
            return
        levels = IR_LEVELS[IR_LEVELS.index(self.module.level):]
        if level not in levels:
            raise LaunchError(f"`{self.name}` cannot run at level `{level}`", None,
                              did_you_mean(level, (*levels, "ptx")) or
                              f"it runs at {', '.join(levels)} and ptx")
        module = self.module.clone()
        if level != module.level:
            compile_from(module, self.target, level)
        values = self._arguments(args, _host_value)
        values += [maker.on_host(values, extents) for maker in makers(recipes(module.funcs[0]))]
        tilec.interp.run(module, self.name, values, extents, seed)

    def _arguments(self, args: Sequence[Any], convert: Callable[[Value, Any], Any]) -> list[Any]:
        params = self.params
        if len(args) != len(params):
            raise LaunchError(f"`{self.name}` got {len(args)} arguments, expected {len(params)}: "
                              f"{', '.join(p.name for p in params)}", None,
                              "pass them in this order")
        return [convert(p, v) for p, v in zip(params, args, strict=True)]

    def _launch(self, grid: Any, *args: Any) -> None:
        with self._brief:
            extents, values = host.check_grid(grid), self._arguments(args, _device_value)
            index = device.current_device()
            launcher, made = self._launchers.get(index), self.compiled
            if launcher is None:
                loaded = load_on_device(made, index)
                launcher = self._launchers[index] = Launcher(
                    loaded.function, [_short(p) for p in self.params], index,
                    [maker.on_device for maker in makers(made.maps)], made.options.launch_pdl,
                    name=self.name, num_ctas=made.options.num_ctas)
            launcher.launch(extents, made.threads, made.shared, device.current_stream(index),
                            values)


def _short(param: Value) -> str:
    """A parameter's type as a launcher calls it."""
    t = param.type
    if isinstance(t, TensorMap):
        return "tensormap"
    if isinstance(t, Pointer):
        return f"*{dt.of_ir(t.pointee).short}"
    assert isinstance(t, Scalar)
    return dt.of_ir(t).short


def _device_value(param: Value, value: Any) -> Any:
    if isinstance(param.type, TensorMap):
        return on_device(value, param.type, param.name)
    key, passed = handler_of(value)(value)
    wanted, pointer = _short(param), isinstance(param.type, Pointer)
    if pointer and (not isinstance(place_of(key), int) or f"*{key[0]}" != wanted) or \
            not pointer and place_of(key) is not None:
        raise LaunchError(f"argument `{param.name}` is {described(value)}, expected "
                          f"{'a device array of type ' * pointer}{wanted.removeprefix('*')}", None,
                          "convert it, or change the parameter's type in the .tir file")
    return passed


def _host_value(param: Value, value: Any) -> Any:
    return on_host(value)


def _simulated_value(param: Value, value: Any) -> Any:
    if isinstance(param.type, TensorMap):
        return in_simulator(value, param.type, param.name)
    return on_host(value)
