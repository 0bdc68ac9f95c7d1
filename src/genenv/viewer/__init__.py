"""The web pages of runs: `genenv view` serves them read-only while runs are written."""
