"""A reward in another process or on another machine: `rlhf reward serve`, and the reward ``remote``."""

TOKEN = "RLHF_REWARD_TOKEN"
"""Environment variable with what a server asks for, and a client sends."""
