"""What the documentation's site needs besides MkDocs: ``make docs-site``."""
