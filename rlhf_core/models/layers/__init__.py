"""What makes forward, matrix products and decoding fast; each has a plain equivalent, the same but for rounding."""
