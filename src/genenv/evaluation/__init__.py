"""Evaluation of policies: the benchmark interface, held-out tasks, and the code behind `genenv eval`."""
