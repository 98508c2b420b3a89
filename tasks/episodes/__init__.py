"""Episodes: what it is to run a robot policy in a simulated environment under an instruction, and what comes of it.

The running itself is `workers/policies` and `workers/environments`.
"""
