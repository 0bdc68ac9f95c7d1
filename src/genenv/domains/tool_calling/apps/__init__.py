"""The toolbox's apps, one module each; `kit` says what an app is made of, `common` has shared helpers."""
