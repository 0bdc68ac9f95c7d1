"""How people ask for each tool: hand-written sentences, a file an app, in two splits that never meet."""

from genenv.domains.tool_calling.phrasings.reading import tool_phrases
from genenv.domains.tool_calling.phrasings.template import ToolPhrases

APPS = (
    "bank", "calendar", "contacts", "convert", "email", "files", "home", "music", "notes", "shop", "trips",
)  # fmt: skip

PHRASES: dict[str, ToolPhrases] = {
    tool: phrases for app in APPS for tool, phrases in tool_phrases(app).items()
}
"""By tool."""
