"""The maths of losses and advantages, as plain functions."""
