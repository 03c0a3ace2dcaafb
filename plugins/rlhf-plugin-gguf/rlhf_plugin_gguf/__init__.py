"""Models in ``.gguf`` files."""
