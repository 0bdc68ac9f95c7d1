"""The settings of a run: ranges, the sections put together, TOML files and overrides."""
