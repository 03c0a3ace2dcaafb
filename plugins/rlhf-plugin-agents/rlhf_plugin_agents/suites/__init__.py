"""Suites: tasks with their tools and what judges them."""
