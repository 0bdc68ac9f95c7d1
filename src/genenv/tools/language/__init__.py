"""Say tasks in words: requests, wordings of tools and values, dates."""
