"""Tasks from a seed: small invented worlds and questions about them."""
