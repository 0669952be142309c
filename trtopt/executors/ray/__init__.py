"""Jobs as tasks on the nodes of a Ray cluster.

Ray places tasks and moves bytes. What is done about a task that is lost is decided here: then it is bounded
and has a reason.
"""
