"""The lab: predicts, generates, collects, trains, evaluates and measures.

The lab imports the product; the product never imports the lab. Where the product offers what the
lab provides, such as commands, it finds it by name when it is asked for.
"""
