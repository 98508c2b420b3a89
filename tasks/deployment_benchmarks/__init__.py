"""Job kind `benchmark`: measures the speed of this deployment, on a schedule or on request, and keeps a history.

The speed of Assay's code, compared with alternatives for the same work, is measured by `bench/`.
"""
