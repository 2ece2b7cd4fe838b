"""Times PyTorch's scaled_dot_product_attention at the sizes of `bench -suite attention`, in bf16: dense causal attention by cuDNN and
FlashAttention-2, and sliding window and compressed attention, whose masks it takes as an array, by the backends that take masks.

    python3 bench/peers.py [-length N] [-decode | -ddp] [FILE.csv]

Milliseconds, forward, and forward and backward: the median of up to 20 runs by CUDA events, after up to 5 to warm up, in about a
second. With -decode microseconds of dense attention of one more token of each sequence behind N, replayed from a CUDA graph, by the
backends that take it. It needs a GPU and PyTorch.

With -ddp tokens per second of training on one GPU alone and on all of the host in turns, with a batch of the same size on each, as
`bench -suite gpus` does: the dense model of peers_cpu.py, compiled, bf16 autocast, attention by cuDNN, fused AdamW;
DistributedDataParallel, a process a GPU, sends gradients as bf16. The median of five runs of ten steps.
"""

import argparse
import csv
import datetime
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

from peers_cpu import VOCAB, Model

SHAPES = {"i": (12, 2, 64), "ii": (64, 4, 128)}  # query heads, key and value heads, dim
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FA-2": SDPBackend.FLASH_ATTENTION, "memory-efficient": SDPBackend.EFFICIENT_ATTENTION}
BLOCK, STRIDE, WINDOW = 32, 16, 512
BATCHES = {2048: 16, 8192: 4, 32768: 1}  # of a GPU, by length
STEPS, ROUNDS = 10, 5


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


def ddp_rows(lengths):
    gpus = torch.cuda.device_count()
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        for length in lengths:
            results = context.SimpleQueue()
            mp.spawn(ddp_rank, (gpus, length, f"file://{folder}/{length}", context.Barrier(gpus), results), gpus)
            for n in (1, gpus):
                yield "base", length, BATCHES[length], n, results.get()


def ddp_rank(rank, gpus, length, rendezvous, barrier, results):
    """Trains as one of all ranks. Rank 0 puts tokens per second: its own, alone, and those of all ranks."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=rendezvous, rank=rank, world_size=gpus)
    tokens = (torch.arange(BATCHES[length] * length, device="cuda") * 7919 % VOCAB).view(BATCHES[length], length)

    def trainer(model):
        optimizer, model = torch.optim.AdamW(model.parameters(), fused=True), torch.compile(model, dynamic=False)

        def step():
            with torch.autocast("cuda", torch.bfloat16), sdpa_kernel(BACKENDS["cuDNN"]):
                loss = model(tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def seconds(step, steps):
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        barrier.wait()
        return time.perf_counter() - begin

    model = DistributedDataParallel(Model().cuda(), device_ids=[rank], gradient_as_bucket_view=True)
    model.register_comm_hook(None, bf16_compress_hook)
    alone, together = trainer(Model().cuda()), trainer(model)
    took = []
    for _ in range(1 + ROUNDS):
        first = seconds(alone, STEPS if rank == 0 else 0)
        seconds(together, 1)  # the other GPUs were idle: they wake up
        took.append((first, seconds(together, STEPS)))
    if rank == 0:
        for n, times in zip((1, gpus), zip(*took[1:])):  # the first round compiles
            results.put(f"{n * STEPS * tokens.numel() / statistics.median(times):.0f}")
    dist.destroy_process_group()


def main():
    arguments = argparse.ArgumentParser(usage=__doc__)
    arguments.add_argument("-length", type=int)
    mode = arguments.add_mutually_exclusive_group()
    mode.add_argument("-decode", action="store_true")
    mode.add_argument("-ddp", action="store_true")
    arguments.add_argument("file", nargs="?")
    given = arguments.parse_args()
    if given.ddp and given.length and given.length not in BATCHES:
        arguments.error(f"-length is {given.length}, want one of {', '.join(map(str, BATCHES))}")
    out = csv.writer(open(given.file, "w", newline="", buffering=1) if given.file else sys.stdout, lineterminator="\n")
    commit = subprocess.getoutput("git rev-parse --short=12 HEAD 2>/dev/null") or "unknown"
    command = "python3 bench/peers.py" + (f" -length {given.length}" if given.length else "")
    command += (" -decode" if given.decode else "") + (" -ddp" if given.ddp else "")
    run = [datetime.date.today(), commit, torch.cuda.get_device_name(), torch.__version__, command]
    columns = ["date", "commit", "machine", "pytorch", "command", "shape", "length"]
    if given.decode:
        out.writerow([*columns, "batch", "backend", "us"])
        found = decode_rows([given.length] if given.length else [2048, 65536])
    elif given.ddp:
        out.writerow([*columns, "batch", "gpus", "tokens_per_second"])
        found = ddp_rows([given.length] if given.length else BATCHES)
    else:
        out.writerow([*columns, "attention", "backend", "forward_ms", "forward_and_backward_ms"])
        found = rows([given.length] if given.length else [2048 << i for i in range(6)])
    for row in found:
        out.writerow([*run, *row])


if __name__ == "__main__":
    main()
