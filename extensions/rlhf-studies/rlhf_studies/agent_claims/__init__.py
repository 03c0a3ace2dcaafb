"""Every agent on every suite with small models, beside published figures."""
