"""Defects to plant into the runtime with `--preload tests.support.defects.NAME`.

Each takes one promise away; a test shows that the comparison of layouts then sees it.
"""
