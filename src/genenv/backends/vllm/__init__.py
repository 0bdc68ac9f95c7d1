"""Policies that train on this machine and sample on vLLM servers."""
