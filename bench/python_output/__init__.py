"""What does this Python session print? An environment with doctests that people wrote as its target."""
