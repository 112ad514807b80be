"""The names of other packages, backed by tilec."""
