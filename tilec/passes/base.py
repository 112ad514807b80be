"""What a pass is, the registry by name, and the pipeline text `a,b{x=1}`."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar

from tilec.errors import TilecError, did_you_mean
from tilec.ir.core import Module


@dataclasses.dataclass(frozen=True)
class Pass:
    """A transformation of a module, in place. A subclass with options is a frozen dataclass too:
    its fields are the options and their defaults.

    name: the class's, in small letters, as the file is called: FormFma is `form_fma`. tolerance: by
    how much of the largest result floats may change, in units of the last place; by default no bit
    does. reorders: sums may be rounded otherwise, or have another order, but are the same sums.
    """

    name: ClassVar[str]
    tolerance: ClassVar[int] = 0
    reorders: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def run(self, module: Module) -> None:
        """Transform `module`; it must verify before and after."""
        raise NotImplementedError

    def __str__(self) -> str:
        """The pass in pipeline text, with the options that differ from their defaults."""
        options = [f"{f.name}={getattr(self, f.name)}" for f in dataclasses.fields(self)
                   if getattr(self, f.name) != f.default]
        return self.name + ("{" + ",".join(options) + "}" if options else "")


@cache
def all_passes() -> dict[str, type[Pass]]:
    """Every pass by name; importing the modules of this package registers them."""
    package = importlib.import_module("tilec.passes")
    for info in pkgutil.walk_packages(package.__path__, "tilec.passes."):
        importlib.import_module(info.name)
    return {cls.name: cls for cls in _subclasses(Pass)}


def _subclasses(cls: type[Pass]) -> Iterator[type[Pass]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def parse_pipeline(text: str) -> list[Pass]:
    """Passes from `a,b{x=1,y=2}`; TilecError names an unknown pass or option."""
    out: list[Pass] = []
    pos = 0
    for match in re.finditer(r"\s*([\w-]+)\s*(?:\{([^}]*)\})?\s*(?:,|$)", text):
        if match.start() != pos:
            break
        pos = match.end()
        out.append(_make(match[1].replace("-", "_"), match[2] or ""))
    if pos != len(text):
        raise TilecError(f"cannot read the pipeline `{text}` at `{text[pos:]}`", None,
                         "write it as `canonicalize,coalesce,pipeline{num_stages=3}`")
    return out


def _make(name: str, options: str) -> Pass:
    # A pass's module has its name, so one import does; all are imported only for the message.
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(f"tilec.passes.{name}")
    cls = next((c for c in _subclasses(Pass) if c.name == name), None)
    if cls is None:
        known = all_passes()
        raise TilecError(f"there is no pass `{name}`", None, did_you_mean(name, known) or
                         f"passes: {', '.join(sorted(known))}")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    values: dict[str, Any] = {}
    for part in filter(None, re.split(r"[,\s]+", options.strip())):
        key, _, value = part.partition("=")
        if key not in fields:
            raise TilecError(f"pass `{name}` has no option `{key}`", None,
                             did_you_mean(key, fields) or f"options: {', '.join(fields) or 'none'}")
        values[key] = _convert(name, key, value, type(fields[key].default))
    return cls(**values)


def _convert(name: str, key: str, value: str, kind: type) -> Any:
    try:
        return value in ("1", "true", "True") if kind is bool else kind(value)
    except ValueError:
        raise TilecError(f"option `{key}` of pass `{name}` is `{value}`, expected "
                         f"{kind.__name__}") from None
