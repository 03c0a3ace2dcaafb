"""Grid, random and seeded sweeps over the settings of `rlhf train`."""
