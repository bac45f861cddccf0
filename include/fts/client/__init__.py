"""A client of the REST interface of FTS."""
