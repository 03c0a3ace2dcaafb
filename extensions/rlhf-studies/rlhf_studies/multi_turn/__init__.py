"""The whole conversation against the last turn."""
