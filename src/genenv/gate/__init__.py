"""What is a task: code decides, no player takes part."""
