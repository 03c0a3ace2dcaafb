"""Five methods from one policy."""
