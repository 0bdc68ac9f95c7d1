"""Runs rollouts of verifiers in a Python that has that package: `python -m genenv_player`.

It needs nothing of genenv. The first line of its input is JSON: `taskset`, `path`, `harness`, `env`,
`max_turns`. Each further line is an order: `begin` (`id`, `given`, `row`), `reply` (`id`, `content`,
`calls`), `end` (`id`), `count` (`id`, `given`, `most`). Each line of output answers an order: the messages
to reply to, the end of a rollout, or a count. Verifiers' model endpoint is a local server that passes each
request on as output and waits for a `reply`.
"""
