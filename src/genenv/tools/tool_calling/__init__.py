"""Tool calling in eleven small apps, which come along as a bundle of tools."""
