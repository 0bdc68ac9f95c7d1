"""Text in, text out: endpoints and local models behind one interface."""
