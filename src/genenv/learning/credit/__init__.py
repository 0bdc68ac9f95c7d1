"""One way of giving credit a module."""
