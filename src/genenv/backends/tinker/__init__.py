"""Both policies on a server that speaks the Tinker protocol: it samples and trains, the loop runs here."""
