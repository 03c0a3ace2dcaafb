"""MBPP in the sandbox."""
