"""One scorer of sound alone, and the composite beside it."""
