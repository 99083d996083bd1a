"""The golden corpus: annotated programs, and what the package made of them.

``make golden`` compares the CUDA text, the decisions and, of some, the simulator's counters with
what was committed; ``make golden ARGS=--update-golden`` rewrites it and names what changed. A
program is a line in the table of its subject, a file in this folder.
"""
