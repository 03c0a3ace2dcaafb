"""Data sets whose rows the verifiers read."""
