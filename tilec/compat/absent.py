"""What libraries written for Triton mention as they are imported, and tilec does not have: it can
be named and compared, and fails where a kernel uses it."""

from __future__ import annotations


class _Absent:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"tl.{self._name}, which tilec does not have"


float8e4b8, float8e5b16 = _Absent("float8e4b8"), _Absent("float8e5b16")  # of AMD's GPUs
backends: dict[str, object] = {}  # those that are plugged in
