"""Times PyTorch's dense causal attention (cuDNN and FlashAttention-2) at the sizes of `bench -suite attention`, in bf16.

    python3 bench/peers.py [FILE.csv]

Milliseconds, forward, and forward and backward: the median of 20 runs by CUDA events, after 5 to warm up. It needs a GPU and PyTorch.
"""

import csv
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

SHAPES = {"i": (12, 2, 64), "ii": (64, 4, 128)}  # query heads, key and value heads, dim
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FA-2": SDPBackend.FLASH_ATTENTION}


def milliseconds(run, warm=5, runs=20):
    times = []
    for i in range(warm + runs):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        run()
        last.record()
        torch.cuda.synchronize()
        if i >= warm:
            times.append(first.elapsed_time(last))
    return statistics.median(times)


def rows():
    for shape, (heads, kv_heads, dim) in SHAPES.items():
        for length in (2048 << i for i in range(6)):
            q, k, v = (
                torch.randn(1, h, length, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                for h in (heads, kv_heads, kv_heads)
            )
            do = torch.randn_like(q)
            for name, backend in BACKENDS.items():

                def forward():
                    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

                def both():
                    torch.autograd.grad(forward(), (q, k, v), do)

                with sdpa_kernel(backend):
                    try:
                        with torch.no_grad():
                            alone = milliseconds(forward)
                        yield shape, length, name, f"{alone:.4f}", f"{milliseconds(both):.4f}"
                    except RuntimeError as err:
                        yield shape, length, name, "refused", str(err).splitlines()[0]


def main():
    if len(sys.argv) > 2 or sys.argv[1:] and sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    out = csv.writer(open(sys.argv[1], "w", newline="") if sys.argv[1:] else sys.stdout)
    out.writerow(["machine", "pytorch", "shape", "length", "backend", "forward_ms", "forward_and_backward_ms"])
    for row in rows():
        out.writerow([torch.cuda.get_device_name(), torch.__version__, *row])


if __name__ == "__main__":
    main()
