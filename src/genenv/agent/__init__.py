"""Player 2: acts and learns."""
