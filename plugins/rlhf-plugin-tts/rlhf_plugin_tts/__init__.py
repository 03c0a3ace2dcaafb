"""Speech: acoustic features, rewards for audio, and their validation against ratings."""
