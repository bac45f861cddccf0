"""Health of the sites that files are read from and transferred between: known once, heeded by every part."""
