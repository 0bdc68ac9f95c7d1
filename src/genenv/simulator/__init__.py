"""Player 1: writes tasks, has them checked, and learns from what they were worth."""
