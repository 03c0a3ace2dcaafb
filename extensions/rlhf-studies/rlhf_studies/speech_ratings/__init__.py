"""Local speech rewards against listeners."""
