"""What a model would do on a GPU that it never ran on.

The way of the data: a workload (workload.py) is run once without computing anything and every
operator that reaches the dispatcher is written down (capture/); the list becomes the operators
that launch GPU work on a GPU (lifting/).
"""
