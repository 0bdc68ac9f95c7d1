"""Reports as self-contained HTML files, and the parts they share; `page` makes the report of a run."""
