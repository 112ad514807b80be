"""Faults planted in tilec one at a time; which test notices each: `python -m tests.mutation`."""
