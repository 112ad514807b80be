"""Runs a module over a grid on the CPU: `interp.run(module, name, args, grid)`."""

from tilec.interp.run import run

__all__ = ["run"]
