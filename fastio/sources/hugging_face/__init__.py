"""Datasets of Hugging Face's datasets package, read without it: directories and objects.

    sources (what there is) -> rows (batches, indices) -> plain (types) -> table (fields)

`dataset` gives any row, with its images (`images`); rows without images are read as tables. What
the package writes about columns is in `fastio.sources.table.features`.
"""
