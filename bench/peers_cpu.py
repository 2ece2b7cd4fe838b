"""Times PyTorch on the CPU, in float32 and forward in bf16 (autocast), at the sizes of `bench -suite gemm,model`: a matrix
product, and a model of the width and depth of Base() with dense causal attention, batch 1, forward, and forward and backward.

    python3 bench/peers_cpu.py [FILE.csv]

Medians, of the product of 40 runs and of the model of three, after some to warm up. To hold PyTorch to AVX2, as NSA_CPU=avx2 does
this module, set MKL_ENABLE_INSTRUCTIONS=AVX2, ATEN_CPU_CAPABILITY=avx2 and ONEDNN_MAX_CPU_ISA=AVX2. Run it and the bench in turns.
"""

import csv
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy, rms_norm, scaled_dot_product_attention, silu

VOCAB, LAYERS, DIM, HEADS, KV_HEADS, HEAD = 256, 12, 768, 12, 2, 64


def seconds(run, warm, runs):
    times = []
    for i in range(warm + runs):
        begin = time.perf_counter()
        run()
        if i >= warm:
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def rope(length, device):
    angles = torch.arange(length, device=device)[:, None] * 10000.0 ** -(torch.arange(0, HEAD, 2, device=device) / HEAD)
    return angles.cos(), angles.sin()


def turn(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(DIM, (HEADS + 2 * KV_HEADS) * HEAD, bias=False)
        self.out = nn.Linear(HEADS * HEAD, DIM, bias=False)
        self.up, self.down = nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x, cos, sin):
        heads = self.project(rms_norm(x, (DIM,))).unflatten(-1, (-1, HEAD)).transpose(1, 2)
        q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        o = scaled_dot_product_attention(turn(q, cos, sin), turn(k, cos, sin), v, is_causal=True, enable_gqa=True)
        x = x + self.out(o.transpose(1, 2).flatten(2))
        return x + self.down(silu(self.up(rms_norm(x, (DIM,)))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB, bias=False)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, tokens):
        x, turns = self.embedding(tokens), rope(tokens.shape[1], tokens.device)
        for layer in self.layers:
            x = layer(x, *turns)
        return cross_entropy(self.head(rms_norm(x, (DIM,)))[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def rows():
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    c = torch.empty(1024, 1024)
    yield "matrix product", "1024x1024x1024", f"{2e-9 * 1024**3 / seconds(lambda: torch.mm(a, b, out=c), 5, 40):.1f}", "GFLOP/s"
    a, b, c = (x.bfloat16() for x in (a, b, c))
    yield "matrix product bf16", "1024x1024x1024", f"{2e-9 * 1024**3 / seconds(lambda: torch.mm(a, b, out=c), 5, 40):.1f}", "GFLOP/s"
    model = Model()
    for length in (512, 2048, 8192):
        tokens = torch.arange(length)[None] * 7919 % VOCAB
        with torch.no_grad():
            yield "dense model, forward", f"S={length}", f"{seconds(lambda: model(tokens), 1, 3):.3f}", "s"
            with torch.autocast("cpu", torch.bfloat16):
                yield "dense model, forward, bf16 autocast", f"S={length}", f"{seconds(lambda: model(tokens), 1, 3):.3f}", "s"
        if length == 512:
            yield "dense model, forward and backward", f"S={length}", f"{seconds(lambda: model(tokens).backward(), 1, 3):.3f}", "s"


def main():
    if len(sys.argv) > 2 or sys.argv[1:] and sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    out = csv.writer(open(sys.argv[1], "w", newline="") if sys.argv[1:] else sys.stdout)
    out.writerow(["pytorch", "threads", "what", "size", "value", "unit"])
    for row in rows():
        out.writerow([torch.__version__, torch.get_num_threads(), *row])


if __name__ == "__main__":
    main()
