"""The version of rlhf-core."""

__version__ = "0.1.0"
