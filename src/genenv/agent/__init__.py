"""The agent: the policy that is rolled out on tasks and trained on them."""
