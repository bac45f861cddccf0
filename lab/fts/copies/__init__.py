"""What moves the bytes of a file, or pretends to."""
