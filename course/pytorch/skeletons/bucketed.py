"""Stage bucketed. Replace each line that raises; ../assignment.md says what must hold afterwards."""
import torch.distributed as dist
from torch import nn


class Bucketed(nn.Module):
    def __init__(self, module, bucket_cap_mb=25.0):
        super().__init__()
        self.module = module
        self.ranks = dist.get_world_size()
        # Begin as in stage naive. Then give each trained parameter its bucket. The cap is in MiB, and a fraction: it
        # may be smaller than one gradient, which then has a bucket of its own.
        raise NotImplementedError("write Bucketed.__init__(): equal weights, and the plan of the buckets")

    def forward(self, *inputs, **keywords):
        return self.module(*inputs, **keywords)

    def finish_gradient_synchronization(self):
        # For each bucket: put its gradients side by side (zeros for None), send them as one message, and bring the
        # mean back to each .grad. The loop may have set .grad to None since the last step.
        raise NotImplementedError("write Bucketed.finish_gradient_synchronization(): one all-reduce per bucket")
