"""HTTP servers over the local engine: the Tinker protocol for training, vLLM's routes for sampling."""
