"""Tables as rows of fields: Parquet, Arrow, CSV and JSONL files, and Arrow data in memory.

    files -> opening -> tables (one after the other) -> columns (Arrow to NumPy) -> fields

`objects` has the files, here or in a store, in one form: readers get `Data` of them (`data`), which
is a mapping or fetched ranges. `parquet`, `arrow` and `text_files` read them. `leaves` has the
table of what type becomes what field, `options` what can be asked for, `values` how arrays become
NumPy's, `filters` which rows are wanted and what folders say of them. `direct` reads row groups
where they lie, in any order and by many threads, by way of `row_groups`; `indexed` single rows.
"""
