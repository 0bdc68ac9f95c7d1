"""The agent policy: acts and learns."""
