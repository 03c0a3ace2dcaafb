"""Speed of acoustic features and speech rewards."""
