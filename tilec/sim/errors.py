"""The simulator's errors: what went wrong, in which PTX line, for which source line."""

from __future__ import annotations


class SimError(Exception):
    """A PTX program that cannot be read, or that did something no GPU would let pass.

    `ptx_line` is the 1-based line in the PTX text, `file` and `line` the source position that the
    nearest `.loc` gives, or None where there is none.
    """

    def __init__(
        self,
        message: str,
        *,
        ptx_line: int | None = None,
        ptx_text: str = "",
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        self.message = message
        self.ptx_line = ptx_line
        self.ptx_text = ptx_text
        self.file = file
        self.line = line
        super().__init__(self.describe())

    def describe(self) -> str:
        """The message with its positions, source position first."""
        text = self.message
        if self.file is not None:
            text = f"{self.file}:{self.line}: {text}"
        if self.ptx_line is not None:
            text += f"\n  PTX line {self.ptx_line}"
            if self.ptx_text:
                text += f": {self.ptx_text}"
        return text


class Fault(Exception):
    """Raised inside an instruction, which does not know its own position; the machine adds it."""

    def __init__(self, message: str, thread: int | None = None) -> None:
        self.message = message
        self.thread = thread
        super().__init__(message)


class Unsupported(Exception):
    """An instruction form that the simulator does not execute."""
