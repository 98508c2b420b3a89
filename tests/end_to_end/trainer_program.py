"""A trainer that takes samples and writes their ids to a file. argv: rollout, name, file."""

import sys
from pathlib import Path

from assay.rollouts import FullyAsyncRollouter, MessageQueueClient

rollout, name, file = sys.argv[1:]
queue = MessageQueueClient(rollout, consumer=name, whole_groups=True, lease_s=600)
rollouter = FullyAsyncRollouter(rollout=rollout)
with Path(file).open("a") as seen:
    while True:
        taken = queue.get_samples(4, timeout=0.5) or queue.get_samples(1)
        if taken:
            for sample, bundle in zip(taken[0], taken[1]["ids"], strict=True):
                seen.write(f"{sample['index']} {bundle}\n")
            seen.flush()
            continue
        queue.acknowledge()
        told = rollouter.view()
        if (
            told["job"]["state"] == "done"
            and told["statistics"]["total_consumed"] == told["statistics"]["total_produced"]
        ):
            break
print("over")
