"""Multi-hop questions: the simulator chooses a chain of facts and words it, code finds the answer."""
