"""The backend `vllm`: this machine trains both policies, and vLLM servers sample from them."""
