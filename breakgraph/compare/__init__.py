"""The comparison behind ``breakgraph probe --compare``: what changed between two drivers' records, in words.

`records` reads a probe's record as questions with answers, `changes` finds the answers that changed, `words` says an
answer as a person would, `reliance` knows what in breakgraph rests on it, and `report` tells it all.
"""
