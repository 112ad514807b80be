"""What one kind of hardware has: `tl.extra.cuda`."""

from tilec.language.extra import cuda

__all__ = ["cuda"]
