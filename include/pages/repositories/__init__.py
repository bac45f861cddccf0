"""The page *Repositories*: `page` reads, by `rows`, and `view` makes of that what is shown."""
