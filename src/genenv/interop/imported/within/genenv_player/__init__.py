"""Plays attempts in verifiers, by a Python that has the package: `python -m genenv_player`.

It needs nothing of genenv. The first line that it reads is JSON: `taskset`, `path`, `harness`, `env`,
`max_turns`. Each line after it is an order: `begin` (`id`, `given`, `row`), `reply` (`id`, `content`,
`calls`), `end` (`id`), `count` (`id`, `given`, `most`). Each line that it writes is about one of them: what
an attempt asks, or how it ended. Behind verifiers' own endpoint sits a server that hands every request to
whoever orders.
"""
