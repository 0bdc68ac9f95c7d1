"""Adapters between genenv's environments and TRL, verifiers, OpenEnv and Gymnasium, in both directions.

These libraries are imported only when they are used.
"""
