"""Credit for each step against credit for the whole."""
