"""What passes between stages, and errors."""
