"""The page *Nights*: `page` reads, by `rows`, and `view` makes of that what is shown."""
