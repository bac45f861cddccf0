"""How verified files are registered: blocks of a data set, and the catalogue that takes them."""
