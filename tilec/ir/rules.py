"""A table of rules, one per op class, looked up through base classes.

Each concern (eval, layout, ranges, LLVM lowering) keeps one table; `missing()` feeds its
completeness test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Rules:
    """Rules of one concern, keyed by op class.

    `@table(ops.Add, ops.Sub)` registers; `table[type(op)]` gives the rule of the nearest base.
    """

    def __init__(self, concern: str) -> None:
        self.concern = concern
        self._rules: dict[type, Callable[..., Any]] = {}
        self._found: dict[type, Callable[..., Any] | None] = {}

    def __call__(self, *op_classes: type) -> Callable[[F], F]:
        def register(rule: F) -> F:
            for cls in op_classes:
                assert cls not in self._rules, f"two {self.concern} rules for {cls.__name__}"
                self._rules[cls] = rule
            self._found.clear()
            return rule

        return register

    def get(self, op_class: type) -> Callable[..., Any] | None:
        """The rule for `op_class` or its nearest base with one; None if there is none."""
        if op_class not in self._found:
            self._found[op_class] = next(
                (self._rules[base] for base in op_class.__mro__ if base in self._rules), None)
        return self._found[op_class]

    def __getitem__(self, op_class: type) -> Callable[..., Any]:
        rule = self.get(op_class)
        if rule is None:
            raise KeyError(f"no {self.concern} rule for {op_class.__name__}")
        return rule

    def missing(self, op_classes: Iterable[type]) -> set[str]:
        """Names of the classes among `op_classes` that have no rule."""
        return {cls.__name__ for cls in op_classes if self.get(cls) is None}
