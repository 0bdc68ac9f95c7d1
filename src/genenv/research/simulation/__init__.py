"""Simulated runs without neural networks: compare curricula over a thousand seeds in a minute."""
