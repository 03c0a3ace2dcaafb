"""What the pocket model knows."""
