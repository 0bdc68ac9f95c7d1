"""OpenAPI documents as worlds: tools of their operations, mock tables of their resources."""
