"""Makes what the documents show."""
