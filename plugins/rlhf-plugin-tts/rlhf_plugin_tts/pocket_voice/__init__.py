"""Pocket-voice: codec, vocoder and text front end of the embedded speech policy."""
