"""Multi-hop questions: the simulator chooses a chain of facts and words a question; code finds the answer."""
