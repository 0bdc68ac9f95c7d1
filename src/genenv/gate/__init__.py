"""What is a task: code decides, no policy takes part."""
