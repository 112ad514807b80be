"""Hooks around launches: `launch_enter` and `launch_exit`, as profilers set them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Hook = Callable[..., Any]
ACTIVE: list[Hook] = []  # every hook there is; while it is empty, launches look no further


class Chain:
    """Functions that are called in turn with a launch's `LaunchInfo`."""

    def __init__(self) -> None:
        self.calls: list[Hook] = []

    def add(self, hook: Hook) -> None:
        """Call `hook` too, after those that are there."""
        self.calls.append(hook)
        ACTIVE.append(hook)

    def remove(self, hook: Hook) -> None:
        """No longer call `hook`; nothing if it is not there."""
        if hook in self.calls:
            self.calls.remove(hook)
            ACTIVE.remove(hook)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        for hook in list(self.calls):
            hook(*args, **kwargs)


launch_enter, launch_exit = Chain(), Chain()


class LaunchInfo:
    """What a launch hook is given; `get()` is a dict of the kernel's `name`, its `function` (a
    handle, or None on the CPU), the raw `stream`, and what the kernel's launch_metadata gives."""

    def __init__(self, known: dict[str, Any], more: Callable[[], dict[str, Any]] | None) -> None:
        self.data, self._more = known, more

    def get(self) -> dict[str, Any]:
        """All of it; the kernel's launch_metadata is called the first time."""
        if self._more is not None:
            self.data, self._more = self.data | self._more(), None
        return self.data
