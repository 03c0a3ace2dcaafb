"""Monitors of learning health; see README.md."""
