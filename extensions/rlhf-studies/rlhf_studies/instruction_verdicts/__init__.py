"""Instruction verdicts against the references."""
