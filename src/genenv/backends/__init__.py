"""Backends, which sample from policies and train them: local models, vLLM, Tinker, scripted functions."""
