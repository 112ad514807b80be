"""Reading a launch's arguments: Python code written once for a call's form, that is for how many
arguments came by position, which by name, and the types of all.

It gives what `arguments.py` says of each, without a call per argument for the usual types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilec.errors import LaunchError, Location, TilecError
from tilec.frontend.function import Param
from tilec.runtime import arguments
from tilec.runtime.arguments import Handler, Key

# Compile-time values that are a key as they are, since a plan serves one type only.
_OWN_KEY = (int, bool, str, type(None))


class Plan:
    """Reads calls of one form.

    read(*given) gives (key, values): key tells specialisations apart, among calls of this form;
    values are the launch arguments, those that may turn out to be constants included. entries:
    what keys lead to.
    """

    def __init__(self, params: Sequence[Param], fixed: Sequence[Handler | None],
                 sources: Sequence[int | None], options: dict[str, int], given: Sequence[Any],
                 where: Location) -> None:
        """fixed: handlers that declarations settle. sources: for each parameter its index in
        `given`, None for its default; options: indices of the launch options there. where: the
        place that errors name. LaunchError for an argument that a kernel cannot take."""
        self.params, self.fixed, self.sources, self.options = params, fixed, sources, options
        self.where = where
        self.entries: dict[Any, Any] = {}
        self.stream = options.get("stream")
        self.keys(given)
        self.read = self._compile(given)

    def bound(self, given: Sequence[Any]) -> list[Any]:
        """The arguments in the order of the parameters."""
        return [p.default if i is None else given[i] for p, i in zip(self.params, self.sources)]

    def chosen(self, given: Sequence[Any]) -> dict[str, Any]:
        """The launch options of a call."""
        return {name: given[i] for name, i in self.options.items()}

    def keys(self, given: Sequence[Any]) -> tuple[list[Key], list[Any]]:
        """Key and value of every argument, as handlers give them; errors name the parameter."""
        keys, values = [], []
        for p, fixed, value in zip(self.params, self.fixed, self.bound(given)):
            try:
                key, out = (fixed or arguments.handler_of(value))(value)
            except TilecError as e:
                raise LaunchError(f"argument `{p.name}`: {e.message}", self.where,
                                  e.advice) from None
            keys.append(key)
            values.append(out)
        return keys, values

    def _compile(self, given: Sequence[Any]) -> Callable[..., tuple[Any, tuple[Any, ...]]]:
        names: dict[str, Any] = {}
        lines: list[str] = []
        keys = [f"g{i}" for name, i in self.options.items() if name != "stream"]
        values: list[str] = []
        for n, (fixed, i, value) in enumerate(zip(self.fixed, self.sources, self.bound(given))):
            arg = f"g{i}"
            if i is None:
                arg = f"d{n}"
                names[arg] = value
            names[f"h{n}"] = handler = fixed or arguments.handler_of(value)
            if handler is arguments.constexpr_handler:
                keys.append(arg if type(value) in _OWN_KEY else f"h{n}({arg})[0]")
                if fixed is None:
                    values.append(arg)
            elif handler is arguments.torch_handler:
                lines.append(f"a{n} = {arg}.data_ptr()")
                keys += [f"{arg}.dtype", f"a{n} & 15 == 0", f"{arg}.get_device()"]
                values.append(f"a{n}")
            elif handler is arguments.int_handler:
                keys.append(f"{arg} & 15 == 0 if {arg} != 1 and -0x80000000 <= {arg} <= 0x7FFFFFFF "
                            f"else h{n}({arg})[0]")
                values.append(arg)
            elif handler in (arguments.float_handler, arguments.bool_handler,
                             arguments.none_handler):
                values.append(arg)  # the type says all
            else:
                lines.append(f"k{n}, v{n} = h{n}({arg})")
                keys.append(f"k{n}")
                values.append(f"v{n}" if arguments.parts_of(value) is None else f"*v{n}")
        lines.append(f"return ({_listed(keys)}), ({_listed(values)})")
        parameters = ", ".join(f"g{i}" for i in range(len(given)))
        exec(f"def read({parameters}):\n  " + "\n  ".join(lines), names)
        read: Callable[..., tuple[Any, tuple[Any, ...]]] = names["read"]
        return read


def _listed(items: Sequence[str]) -> str:
    return "".join(item + ", " for item in items)
