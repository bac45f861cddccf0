"""The page *Publications*: `page` reads, by `rows`, and `view` makes of that what is shown."""
