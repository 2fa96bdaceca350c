"""What a process of a job sees of its devices."""

import os


def devices(argument, send):
    """Send, for each rank, what it sees of GPUs and where it may run."""
    import torch.distributed as dist

    own = [os.environ["CUDA_VISIBLE_DEVICES"], sorted(os.sched_getaffinity(0))]
    found = [own]
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, own)
        dist.destroy_process_group()
    send(found)
