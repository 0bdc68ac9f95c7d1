"""Servers: the Tinker protocol, and the sampling routes of vLLM, both over the local engine."""
