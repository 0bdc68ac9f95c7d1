"""The settings of a run: sections joined into one configuration, TOML files, overrides and variants."""
