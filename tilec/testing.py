"""What benchmarks of kernels need: `tilec.testing.do_bench`."""

from tilec.runtime.bench import do_bench

__all__ = ["do_bench"]
