"""Players that learn on this machine and sample on N servers of vLLM."""
