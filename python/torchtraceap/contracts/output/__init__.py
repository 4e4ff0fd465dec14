"""Results of checks for other programs: JUnit, SARIF, Markdown, GitHub's annotations, text.

Names in them come from traces and files of others: `plain.py` makes them harmless first, and each
format escapes what it has to.
"""
