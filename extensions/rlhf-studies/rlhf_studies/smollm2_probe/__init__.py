"""What a real model knows of wrong steps."""
