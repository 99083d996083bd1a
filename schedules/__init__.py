"""Ready schedules, one operator a file; each file ends in its ``OPERATOR``.

The tuner finds an operator by its file's name. To write one, copy the file nearest to it.
"""
