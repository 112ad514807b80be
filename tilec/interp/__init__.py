"""Runs a module over a grid on the CPU: `interp.run(module, name, args, grid)`."""

from tilec.interp.blame import pointer_roots
from tilec.interp.run import run

__all__ = ["pointer_roots", "run"]
