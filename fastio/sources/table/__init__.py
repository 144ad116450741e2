"""Tables as rows of fields: Parquet, Arrow, CSV and JSONL files, and Arrow data in memory.

    files -> opening -> tables (one after the other) -> columns (Arrow to NumPy) -> fields

`objects` has the files, here or in a store, in one form: readers get `Data` of them (`data`), which
is a mapping or fetched ranges. `reading` says what a table is: a `Table` is read from its beginning
to its end, a `Grouped` one also by its row groups, in any order and by any thread. `parquet`,
`arrow` and `text_files` have one class for each format. `leaves` has the table of what type becomes
what field, `options` what can be asked for, `values` how arrays become NumPy's, `filters` which
rows are wanted and what folders say of them. `direct` opens the row groups of several files;
`indexed` reads single rows.
"""
