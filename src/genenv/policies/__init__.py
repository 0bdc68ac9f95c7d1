"""What samples and learns: scripted functions for tests, and models on this machine."""
