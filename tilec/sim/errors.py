"""The simulator's errors: what went wrong, in which PTX line, for which source line."""

from __future__ import annotations

from tilec.errors import Location, SimulatorError


class SimError(SimulatorError):
    """A PTX program that cannot be read, or that did something no GPU would let pass.

    `reason` is what went wrong, `ptx_line` and `ptx_column` the place in the PTX text, from
    1, and `ptx_text` what stands there; `loc` is the source position that the nearest `.loc` gives,
    None where there is none.
    """

    def __init__(self, reason: str, *, ptx_line: int | None = None, ptx_column: int = 1,
                 ptx_text: str = "", loc: Location | None = None) -> None:
        self.reason = reason
        self.ptx_line, self.ptx_column = ptx_line, ptx_column
        self.ptx_text = ptx_text
        message = reason
        if ptx_line is not None:
            message += f"\n  PTX line {ptx_line}, column {ptx_column}"
            message += f": {ptx_text}" if ptx_text else ""
        super().__init__(message, loc)

    def within(self, where: str) -> SimError:
        """The same error with `where` said before its reason."""
        return SimError(f"{where}: {self.reason}", ptx_line=self.ptx_line,
                        ptx_column=self.ptx_column, ptx_text=self.ptx_text, loc=self.loc)


class Fault(Exception):
    """Raised inside an instruction, which does not know its own position; the machine adds it."""

    def __init__(self, message: str, thread: int | None = None) -> None:
        self.message = message
        self.thread = thread
        super().__init__(message)


class Unsupported(Exception):
    """An instruction form that the simulator does not execute."""
