"""Times PyTorch's scaled_dot_product_attention at the sizes of `bench -suite attention`, in bf16: dense causal attention by cuDNN and
FlashAttention-2, and sliding window and compressed attention, whose masks it takes as an array, by the backends that take masks.

    python3 bench/peers.py [FILE.csv]
    python3 bench/peers.py decode [FILE.csv]    # one token of each sequence of a batch against all keys before it, forward alone

Milliseconds, forward, and forward and backward: the median of up to 20 runs by CUDA events, after up to 5 to warm up, in about a
second. It needs a GPU and PyTorch.
"""

import csv
import datetime
import statistics
import subprocess
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

SHAPES = {"i": (12, 2, 64), "ii": (64, 4, 128)}  # query heads, key and value heads, dim
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FA-2": SDPBackend.FLASH_ATTENTION, "memory-efficient": SDPBackend.EFFICIENT_ATTENTION}
BLOCK, STRIDE, WINDOW = 32, 16, 512


def milliseconds(run, warm=5, runs=20):
    times, begin = [], time.monotonic()
    for i in range(warm + runs):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        run()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last))
        if i >= 3 and time.monotonic() - begin > 1:
            break
    return statistics.median(times[min(warm, len(times) // 2) :])


def masks(length):
    """The keys that a query sees: their number, and a function that makes the mask [length, keys]; None for causal attention."""
    compressed = (length - BLOCK) // STRIDE + 1
    tokens = torch.arange(length, device="cuda")

    def window():
        back = tokens[:, None] - tokens
        return (back >= 0) & (back < WINDOW)

    def ended():
        return torch.arange(compressed, device="cuda") * STRIDE + BLOCK - 1 <= tokens[:, None]

    return {"dense": (length, None), "window": (length, window), "compressed": (compressed, ended)}


def rows():
    for length in (2048 << i for i in range(6)):
        for shape, (heads, kv_heads, dim) in SHAPES.items():
            for name, (keys, mask) in masks(length).items():
                for backend in BACKENDS:
                    if backend == {"dense": "memory-efficient"}.get(name, "FA-2"):  # FA-2 takes no masks
                        continue
                    try:
                        yield shape, length, name, backend, *times(heads, kv_heads, dim, length, keys, mask, backend)
                    except RuntimeError as err:
                        yield shape, length, name, backend, "refused", str(err).strip().splitlines()[0]


def times(heads, kv_heads, dim, length, keys, mask, backend):
    """Only cuDNN and FlashAttention-2 without a mask share keys between heads; elsewhere each head has its own."""
    groups = kv_heads if mask is None else heads
    q, k, v = (
        torch.randn(1, h, n, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for h, n in ((heads, length), (groups, keys), (groups, keys))
    )
    do = torch.randn_like(q)
    seen = {"is_causal": True} if mask is None else {"attn_mask": mask()}

    def forward():
        return scaled_dot_product_attention(q, k, v, enable_gqa=groups != heads, **seen)

    def both():
        torch.autograd.grad(forward(), (q, k, v), do)

    with sdpa_kernel(BACKENDS[backend]):
        with torch.no_grad():
            alone = milliseconds(forward)
        return f"{alone:.4f}", f"{milliseconds(both):.4f}"


def decoding():
    """Dense attention of one token of each sequence, over keys that it all sees."""
    for shape, (heads, kv_heads, dim) in SHAPES.items():
        for batch, length in ((1, 2048), (16, 2048), (64, 2048), (1, 65536), (8, 65536)):
            q, k, v = (torch.randn(batch, h, n, dim, device="cuda", dtype=torch.bfloat16) for h, n in ((heads, 1), (kv_heads, length), (kv_heads, length)))
            for backend in ("cuDNN", "FA-2"):
                try:
                    with sdpa_kernel(BACKENDS[backend]), torch.no_grad():
                        ms = milliseconds(lambda: scaled_dot_product_attention(q, k, v, enable_gqa=True))
                    yield shape, length, f"decode, batch {batch}", backend, f"{ms:.4f}", ""
                except RuntimeError as err:
                    yield shape, length, f"decode, batch {batch}", backend, "refused", str(err).strip().splitlines()[0]


def main():
    args = sys.argv[1:]
    one = args[:1] == ["decode"]
    args = args[one:]
    if len(args) > 1 or args and args[0].startswith("-"):
        sys.exit(__doc__)
    out = csv.writer(open(args[0], "w", newline="", buffering=1) if args else sys.stdout)
    out.writerow(["date", "commit", "machine", "pytorch", "command", "shape", "length", "attention", "backend", "forward_ms", "forward_and_backward_ms"])
    commit = subprocess.getoutput("git rev-parse --short=12 HEAD 2>/dev/null") or "unknown"
    run = [datetime.date.today(), commit, torch.cuda.get_device_name(), torch.__version__, "python3 bench/peers.py" + " decode" * one]
    for row in decoding() if one else rows():
        out.writerow([*run, *row])


if __name__ == "__main__":
    main()
