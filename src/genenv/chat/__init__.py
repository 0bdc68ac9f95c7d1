"""From messages to tokens and back: chat templates, tools in a model's own form, thoughts."""
