"""Runs other public implementations of NSA on random inputs and writes what they compute: what TestOtherImplementations compares with.

    pip install torch einops safetensors einx==0.3.0 local-attention rotary-embedding-torch
    git clone https://github.com/fla-org/native-sparse-attention fla
    git clone https://github.com/XunhaoLai/native-sparse-attention-triton xunhaolai
    git clone https://github.com/lucidrains/native-sparse-attention-pytorch lucidrains
    git clone https://github.com/mdy666/Scalable-Flash-Native-Sparse-Attention mdy666
    python write.py FOLDER_OF_CLONES FOLDER [N]

With N it writes N cases of random sizes for each implementation instead, for NSA_TEST_IMPLEMENTATIONS=FOLDER.

It needs no GPU: of each implementation it runs the plain PyTorch code, in float64 where that allows it. Files are float32. Each holds
q [B,S,Hq,D], k [B,S,Hkv,D], v [B,S,Hkv,Dv], gates [B,S,Hq,branches], r and o [B,S,Hq,Dv], idx [B,S,Hkv,n], perhaps cu (the bounds of
documents among the B*S tokens), and the gradients of sum(o * r). The metadata has one JSON, "config": sizes, branches, and source, commit
and licence of the code.
"""

import importlib.util
import json
import os
import random
import subprocess
import sys

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # fla compiles a function

import torch
from safetensors.torch import save_file

COMMITS = {
    "fla": ("fla-org/native-sparse-attention", "bd67af59b90afa34b25f61d2922e612d10dba3bd", "MIT"),
    "xunhaolai": ("XunhaoLai/native-sparse-attention-triton", "9bea856c911ebf263be88d797fb28458f82f1d94", "Apache-2.0"),
    "lucidrains": ("lucidrains/native-sparse-attention-pytorch", "83fa271c21a0db35ef10d38d1d50aba8a09d3c69", "MIT"),
    "mdy666": ("mdy666/Scalable-Flash-Native-Sparse-Attention", "fcf117c3c8a12e274aa75f2a01b0d12d76f44128", "MIT"),
}


def load(clones, name, path):
    """Imports one file of a clone. Their packages import Triton and CUDA."""
    spec = importlib.util.spec_from_file_location(f"{name}_{os.path.basename(path)[:-3]}", os.path.join(clones, name, path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ascending(idx, n):
    """Returns lists of blocks as the ops take them: ascending, each block once, padded with -1 to n."""
    rows = [sorted({j for j in row if j >= 0}) for row in idx.flatten(0, -2).tolist()]
    rows = [row + [-1] * (n - len(row)) for row in rows]
    return torch.tensor(rows, dtype=torch.int32).view(*idx.shape[:-1], n)


def means(x, l, d):
    """Compresses x [S,H,D] to [Nc,H,D]."""
    return x.unfold(0, l, d).mean(-1) if len(x) >= l else x[:0]


def fla(clones, c, q, k, v, gates):
    naive = load(clones, "fla", "native_sparse_attention/ops/naive.py")
    float32, torch.Tensor.float = torch.Tensor.float, torch.Tensor.double
    o, idx = naive.naive_nsa_with_compression(q, k, v, *gates.unbind(-1), block_counts=c["n"], block_size=c["lp"], window_size=c["w"])
    torch.Tensor.float = float32
    return o, ascending(idx, c["n"])


def xunhaolai(clones, c, q, k, v, gates):
    compressed = load(clones, "xunhaolai", "native_sparse_attention/ops/torch/compressed_attention.py")
    selected = load(clones, "xunhaolai", "native_sparse_attention/ops/torch/topk_sparse_attention.py")
    shape, l, d, lp, n, bounds = q.shape[:2], c["l"], c["d"], c["lp"], c["n"], c["cu"]
    q, k, v, gates = (x.flatten(0, 1) for x in (q, k, v, gates))
    documents = [slice(a, b) for a, b in zip(bounds, bounds[1:])]
    kcs, vcs = ([means(x[document], l, d) for document in documents] for x in (k, v))
    lengths, keys = [x.stop - x.start for x in documents], [len(x) for x in kcs]
    cu = torch.tensor(bounds, dtype=torch.int32)
    cuc = torch.tensor([0] + keys).cumsum(0).int()
    oc, idx = compressed.compressed_attention_torch(q, torch.cat(kcs), torch.cat(vcs), l, d, lp, n, cu, cuc, max(lengths), max(keys))
    os_ = selected.topk_sparse_attention_torch(q, k, v, idx, lp, cu)
    o = gates[..., 0:1] * oc + gates[..., 1:2] * os_
    return o.unflatten(0, shape), ascending(idx.transpose(0, 1), n).unflatten(0, shape)


def mdy666(clones, c, q, k, v, gates):
    ref = load(clones, "mdy666", "flash_nsa/ops/torch_ref.py")
    l, d, lp, n = (c[x] for x in ("l", "d", "lp", "n"))
    outs, idxs = [], []
    for q, k, v, g in zip(q, k, v, gates):
        kc, vc = (ref.torch_construct_block(x, l, d).mean(-2) for x in (k, v))
        oc = ref.torch_cmp_attn(q, kc, vc, l, d)
        with torch.no_grad():
            idx = ref.torch_topk(q, kc, l, d, lp, n, 1, 2)
        os_ = ref.torch_slc_attn(q, k, v, idx, lp)
        outs.append(g[..., 0:1] * oc + g[..., 1:2] * os_)
        idxs.append(idx.masked_fill(idx >= c["S"], -1).transpose(0, 1))
    return torch.stack(outs), ascending(torch.stack(idxs), n)


def lucidrains(clones, c, q, k, v, gates):
    """The layer with the identity as its projections, and the compressed branch behind a closed gate. Its n has no own block."""
    sys.path.insert(0, os.path.join(clones, "lucidrains"))
    from native_sparse_attention_pytorch.native_sparse_attention import SparseAttention

    B, S, Hq, Hkv, D = (c[x] for x in ("B", "S", "Hq", "Hkv", "D"))
    width = (Hq + 2 * Hkv) * D

    class Gates(torch.nn.Module):
        def forward(self, x):
            return torch.cat([torch.full_like(gates[..., :1], -1e9), gates.logit()], -1).flatten(2)

    layer = SparseAttention(width, D, Hq, c["w"] - 1, c["l"], c["d"], c["lp"], c["n"] - 1, kv_heads=Hkv, causal=True, norm=False,
                            strategy_combine_mlp=Gates()).double()
    layer.to_qkv, layer.combine_heads = torch.nn.Identity(), torch.nn.Identity()
    top, topk = [], torch.Tensor.topk

    def keep(x, *args, **options):
        top.append(topk(x, *args, **options))
        return top[-1]

    torch.Tensor.topk = keep
    o = layer(torch.cat([x.flatten(2) for x in (q, k, v)], -1)).view(B, S, Hq, D)
    torch.Tensor.topk = topk
    own = (torch.arange(S) // c["lp"]).view(1, 1, S, 1).expand(B, Hkv, S, 1)
    idx = torch.cat([top[0].indices.masked_fill(top[0].values <= 1e-10, -1), own], -1) if top else own
    return o, ascending(idx.transpose(1, 2), c["n"])


# Branches whose code runs without a GPU; whether the blocks are those of SelectBlocks; whether q and k are turned by RoPE.
RUNS = {
    "fla": (fla, ["cmp", "sel", "win"], False, False),
    "xunhaolai": (xunhaolai, ["cmp", "sel"], True, False),
    "mdy666": (mdy666, ["cmp", "sel"], True, False),
    "lucidrains": (lucidrains, ["sel", "win"], False, True),
}


def case(clones, name, c):
    """Returns the tensors and the metadata of one case. c holds the sizes, a seed and, for xunhaolai, the bounds of documents."""
    run, branches, selects, rope = RUNS[name]
    torch.manual_seed(c["seed"])  # of the layer's weights
    g = torch.Generator().manual_seed(c["seed"])
    rand = lambda *s: torch.randn(*s, generator=g).double().requires_grad_()
    B, S, Hq, Hkv, D, Dv = (c[x] for x in ("B", "S", "Hq", "Hkv", "D", "Dv"))
    x = {"q": rand(B, S, Hq, D), "k": rand(B, S, Hkv, D), "v": rand(B, S, Hkv, Dv)}
    x["gates"] = (0.05 + 0.9 * torch.rand(B, S, Hq, len(branches), generator=g)).double().requires_grad_()
    o, idx = run(clones, c, **x)
    r = torch.randn(o.shape, generator=g).double()
    grads = torch.autograd.grad((o * r).sum(), list(x.values()))
    t = dict(x, r=r, o=o, **{"grad_" + key: grad for key, grad in zip(x, grads)})
    t = {key: value.detach().float().contiguous() for key, value in t.items()}
    repository, commit, licence = COMMITS[name]
    config = dict(c, branches=branches, selects=selects, rope=rope)
    config.update(source=f"https://github.com/{repository}", commit=commit, licence=licence)
    t["idx"] = idx.contiguous()
    if "cu" in c:
        t["cu"] = torch.tensor(c["cu"], dtype=torch.int32)
    return t, {"config": json.dumps(config)}  # one key: safetensors writes keys in any order


def sizes(seed, B, S, Hq, Hkv, D, Dv, l, d, lp, n, w):
    return dict(seed=seed, B=B, S=S, Hq=Hq, Hkv=Hkv, D=D, Dv=Dv, l=l, d=d, lp=lp, n=n, w=w)


CASES = {
    "fla": sizes(1, 1, 75, 6, 2, 6, 4, 8, 8, 8, 4, 20),
    "xunhaolai": dict(sizes(2, 2, 59, 4, 2, 4, 6, 8, 4, 8, 4, 1), cu=[0, 7, 59, 104, 105, 118]),
    "mdy666": sizes(3, 1, 107, 6, 1, 4, 6, 8, 4, 16, 4, 1),
    "lucidrains": sizes(4, 1, 75, 4, 2, 6, 6, 4, 4, 8, 4, 20),
}


def random_sizes(name, seed):
    """Returns sizes that the implementation takes, often around the ends of blocks."""
    r = random.Random(f"{name} {seed}")
    choose = r.choice
    d = choose([1, 2, 3, 5, 8, 16])
    l, lp, n = d * choose([1, 2, 2, 3]), d * choose([1, 2, 3, 4, 4]), choose([3, 3, 4, 5, 8, 16])
    D, Dv, h, Hkv = choose([1, 2, 3, 5, 8, 20]), choose([1, 3, 4, 8, 17]), choose([1, 2, 3, 6, 16]), choose([1, 1, 2, 3])
    if choose([False] * 5 + [True]):
        l, d, lp = 32, 16, 64
    if name == "fla":
        l = d = lp
    if name == "xunhaolai":
        lp = l * choose([1, 2, 3])
    if name == "lucidrains":
        l, D = d, choose([4, 6, 16])
        Dv = D
    if name in ("fla", "lucidrains"):
        n = choose([1, 2, n])
    S = max(1, min(300, choose([1, l - 1, l, l + 1, d, lp, lp + 1, 3 * lp - 1, 4 * lp + d + 1, 6 * lp + 3, 149])))
    w = choose([2, 3, 7, 33, S + 1, S + 5])
    c = sizes(seed, choose([1, 1, 2, 3]), S, h * Hkv, Hkv, D, Dv, l, d, lp, n, w)
    if name == "xunhaolai":
        cuts = [r.randrange(c["B"] * S) for _ in range(choose([0, 1, 2, 5]))]
        c["cu"] = sorted({b * S for b in range(c["B"] + 1)} | set(cuts))
    return c


if __name__ == "__main__":
    clones, out, *count = sys.argv[1:]
    torch.set_num_threads(1)
    for name, (_, commit, _) in COMMITS.items():
        head = subprocess.run(["git", "-C", os.path.join(clones, name), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
        if head != commit:
            print(f"{name}: the clone is at {head or 'no commit'}, COMMITS has {commit}", file=sys.stderr)
        cases = {name: CASES[name]}
        if count:
            cases = {f"{name}_{seed:04}": random_sizes(name, seed) for seed in range(int(count[0]))}
        for file, c in cases.items():
            tensors, metadata = case(clones, name, c)
            save_file(tensors, os.path.join(out, file + ".safetensors"), metadata)
