"""What a round is made of: what is sampled in it, and what the players learn from that."""
