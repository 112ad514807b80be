"""Python functions to tile IR."""
