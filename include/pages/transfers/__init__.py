"""The pages *Transfers* and *Transfer*: `overview` and `file` read, by `rows`; `view` makes of that what is shown."""
