"""A reward in another process or on another machine: `rlhf reward serve`, and the reward ``remote``."""
