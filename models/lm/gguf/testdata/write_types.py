"""Writes types.gguf: a tensor of each type that package models/lm/gguf reads, beside it NAME.float32 as package gguf
dequantizes it, and a value of each type of metadata.

    pip install gguf==0.19.0
    python write_types.py types.gguf
"""

import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFValueType as V

rng = np.random.default_rng(1)
w = gguf.GGUFWriter(sys.argv[1], "llama")
for i, v in enumerate([V.UINT8, V.INT8, V.UINT16, V.INT16, V.UINT32, V.INT32, V.UINT64, V.INT64]):
    w.add_key_value(f"test.{v.name.lower()}", 100 + i if i % 2 == 0 else -100 - i, v)
w.add_key_value("test.float32", 0.1, V.FLOAT32)
w.add_key_value("test.float64", 0.1, V.FLOAT64)
w.add_key_value("test.bool", True, V.BOOL)
w.add_key_value("test.string", "überall", V.STRING)
w.add_array("test.strings", ["a", "", "日本"])
w.add_array("test.ints", [1, -2, 3])
w.add_array("test.floats", [0.5, -1.5])
w.add_array("test.bools", [True, False])

x = rng.standard_normal((2, 256)).astype(np.float32)
for t in [T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.Q4_K, T.Q5_K, T.Q6_K]:
    try:
        raw = gguf.quants.quantize(x, t)
    except NotImplementedError:  # K-quants: random blocks with scales of a sensible size
        raw = rng.integers(0, 256, (2, gguf.GGML_QUANT_SIZES[t][1]), dtype=np.uint8)
        at = raw.shape[1] - 2 if t == T.Q6_K else 0
        raw[:, at:at + 2] = np.array([[0.01], [-0.02]], np.float16).view(np.uint8)
        if t != T.Q6_K:
            raw[:, 2:4] = np.array([[0.03], [0.04]], np.float16).view(np.uint8)
    w.add_tensor(t.name, raw, raw_dtype=t)
    w.add_tensor(f"{t.name}.float32", gguf.quants.dequantize(raw, t).astype(np.float32))
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
