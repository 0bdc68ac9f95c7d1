"""OpenAPI documents as tool environments: one tool per operation, on mock tables or a recorded service."""
