"""Writes plugin packages that work from the first minute: `rlhf plugins new`."""
