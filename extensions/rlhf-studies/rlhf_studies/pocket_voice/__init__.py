"""How pocket-voice sounds beside the voice that it learnt."""
