"""Models of several codebooks as policies of one stream of tokens: what Parler-TTS, Dia and CSM have in common."""
