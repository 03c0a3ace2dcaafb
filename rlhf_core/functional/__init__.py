"""Plain tensor functions; the same code the trainers run."""
