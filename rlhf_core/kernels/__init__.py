"""What makes the forward, matrix products and decoding fast; each has a plain equivalent that it is compared with."""
