"""Ratio tables against peers measured in the same run: `python -m benchmarks.<name>`."""
