"""Times PyTorch's scaled_dot_product_attention at the sizes of `bench -suite attention`, in bf16: dense causal attention by cuDNN and
FlashAttention-2, and sliding window and compressed attention, whose masks it takes as an array, by the backends that take masks.

    python3 bench/peers.py [-length N] [-decode] [FILE.csv]

Milliseconds, forward, and forward and backward: the median of up to 20 runs by CUDA events, after up to 5 to warm up, in about a
second. With -decode microseconds of dense attention of one more token of each sequence behind N, replayed from a CUDA graph, by the
backends that take it. It needs a GPU and PyTorch.
"""

import argparse
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


def rows(lengths):
    for length in lengths:
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


def decode_rows(lengths):
    for length in lengths:
        for shape, (heads, kv_heads, dim) in SHAPES.items():
            for batch in (1, 8, 16, 64):
                if batch * length * kv_heads * dim * 8 <= 8 << 30:
                    for backend in BACKENDS:
                        try:
                            yield shape, length, batch, backend, decode_microseconds(heads, kv_heads, dim, length, batch, backend)
                        except RuntimeError as err:
                            yield shape, length, batch, backend, "refused: " + str(err).strip().splitlines()[0]


def decode_microseconds(heads, kv_heads, dim, length, batch, backend):
    shared = backend != "memory-efficient"  # else each head has its own keys: they are repeated before the time is taken
    groups = kv_heads if shared else heads
    if groups * batch * length * dim * 4 > 32 << 30:
        raise RuntimeError("too large")
    q = torch.randn(batch, heads, 1, dim, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(batch, groups, length, dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    with torch.no_grad(), sdpa_kernel(BACKENDS[backend]):
        scaled_dot_product_attention(q, k, v, enable_gqa=shared)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(8):
                scaled_dot_product_attention(q, k, v, enable_gqa=shared)
        return f"{milliseconds(graph.replay) * 1e3 / 8:.2f}"


def main():
    arguments = argparse.ArgumentParser(usage=__doc__)
    arguments.add_argument("-length", type=int)
    arguments.add_argument("-decode", action="store_true")
    arguments.add_argument("file", nargs="?")
    given = arguments.parse_args()
    out = csv.writer(open(given.file, "w", newline="", buffering=1) if given.file else sys.stdout, lineterminator="\n")
    commit = subprocess.getoutput("git rev-parse --short=12 HEAD 2>/dev/null") or "unknown"
    command = "python3 bench/peers.py" + (f" -length {given.length}" if given.length else "") + (" -decode" if given.decode else "")
    run = [datetime.date.today(), commit, torch.cuda.get_device_name(), torch.__version__, command]
    columns = ["date", "commit", "machine", "pytorch", "command", "shape", "length"]
    if given.decode:
        out.writerow([*columns, "batch", "backend", "us"])
        found = decode_rows([given.length] if given.length else [2048, 65536])
    else:
        out.writerow([*columns, "attention", "backend", "forward_ms", "forward_and_backward_ms"])
        found = rows([given.length] if given.length else [2048 << i for i in range(6)])
    for row in found:
        out.writerow([*run, *row])


if __name__ == "__main__":
    main()
