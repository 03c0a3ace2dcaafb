"""Grades on a rubric against preferences."""
