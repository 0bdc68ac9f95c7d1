"""A laboratory in which neither player is a neural network: curricula over a thousand seeds in a minute."""
