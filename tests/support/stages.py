"""Names of saved stages, from PIPELINE: tests hold whatever the pipeline grows to."""

from __future__ import annotations

from tilec.compiler import LEVELS, PIPELINE, Stage, stage_level

NAMES = ["frontend", *(step.run.name for step in PIPELINE), "llir", "ptx", "cubin"]


def stage_number(name: str, level: str | None = None) -> int:
    """The number of the last stage of that name (at that level, if one is given)."""
    found = [i for i, n in enumerate(NAMES)
             if n == name and level in (None, stage_level(i))]
    assert found, f"no stage {name} at level {level or 'any'}"
    return found[-1]


def stage_file(name: str, level: str | None = None) -> str:
    """The name under which that stage is saved."""
    number = stage_number(name, level)
    return Stage(number, name, stage_level(number), "").file


def level_file(level: str) -> str:
    """The name under which the last stage of a level is saved."""
    assert level in LEVELS
    number = max(i for i in range(len(NAMES)) if stage_level(i) == level)
    return Stage(number, NAMES[number], level, "").file
