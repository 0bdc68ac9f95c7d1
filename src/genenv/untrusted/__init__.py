"""What others wrote, read within limits: documents, regular expressions, JSON schemas."""
