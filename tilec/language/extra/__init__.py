"""What one kind of hardware has, `tl.extra.cuda`, and `tl.extra.libdevice`."""

from tilec.language.extra import cuda, libdevice

__all__ = ["cuda", "libdevice"]
