"""Seven algorithms on one task."""
