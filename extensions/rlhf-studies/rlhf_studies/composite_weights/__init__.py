"""The weights of a composite reward."""
