"""A real model learns a task."""
