"""OpenAPI documents as tool environments: a tool for each operation, on mock tables or a recorded service."""
