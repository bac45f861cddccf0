"""A campaign as a page and as pictures."""
