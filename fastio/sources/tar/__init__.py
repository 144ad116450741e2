"""WebDataset tars, read in place.

    path -> headers (one pass) -> index (kept) -> dataset: row -> tar, bytes

`reader` says which tars a path means and where their bytes come from, here or in a store, `headers`
finds the members of one and groups them, `values` knows what they hold, `fields` which of them a
dataset has.
"""
