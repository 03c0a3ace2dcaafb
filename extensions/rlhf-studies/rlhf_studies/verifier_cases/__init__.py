"""Maths verifiers on other projects' cases."""
