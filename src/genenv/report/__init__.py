"""Pages for people: each is one self-contained HTML file. `page` makes that of a run."""
