"""Builds pocket-voice: a corpus spoken by flite's voice rms, a codec, and a small language model of its codes."""
