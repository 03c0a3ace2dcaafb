"""Process against outcome rewards, asked of a real model."""
