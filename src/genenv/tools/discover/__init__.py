"""Find out how tools can be called: which arguments succeed, what they read and change."""
