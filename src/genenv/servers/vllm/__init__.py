"""genenv's own engine behind those routes of vLLM that sampling in training needs: tokens in, tokens out."""
