"""Process against outcome rewards."""
