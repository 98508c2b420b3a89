"""Episodes: runs of a robot policy in a simulated environment under an instruction: specs, results and statistics.

Not covered: the execution of episodes, which is in `workers/policies` and `workers/environments`.
"""
