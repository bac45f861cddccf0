"""Documents in the store by which publications, collections and freezes know of each other."""
