"""Agents that call tools, their backends, and suites that score what they answer and how they got there."""
