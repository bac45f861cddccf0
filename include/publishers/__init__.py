"""Ways to publish behind one interface."""
