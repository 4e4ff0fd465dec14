"""The pytest plugin: contracts as a marker and a fixture. pytest finds it by its entry point.

It is imported by every run of pytest where this package is installed, so it imports nothing that
such a run does not have anyway.
"""
