"""GSM8K with a small model."""
