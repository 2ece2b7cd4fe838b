"""Writes what transformers makes of a GGUF file, for NSA_TEST_GGUF of the tests.

    python3 gguf.py MODEL.gguf     # writes MODEL.gguf.json; needs transformers, torch, gguf and accelerate
"""
import json
import pathlib
import sys

import torch
import transformers

path = pathlib.Path(sys.argv[1])
load = dict(pretrained_model_name_or_path=path.parent, gguf_file=path.name)
tokenizer = transformers.AutoTokenizer.from_pretrained(**load)
model = transformers.AutoModelForCausalLM.from_pretrained(**load, dtype=torch.float32)
prompts = ["The capital of France is", "def fibonacci(n):", "Once upon a time", "The three laws of robotics are",
           "Water boils at", "import numpy as np\n", "In 1969,", "Dear Sir or Madam,", "To make a good cup of tea",
           "The quick brown fox"]
results = []
for prompt in prompts:
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    with torch.no_grad():
        logits = model(ids).logits[0, -1]
        greedy = model.generate(ids, do_sample=False, max_new_tokens=200, pad_token_id=0, eos_token_id=None)
    results.append(dict(prompt=prompt, ids=ids[0].tolist(), logits=logits.tolist(), greedy=greedy[0, ids.shape[1]:].tolist()))
path.with_name(path.name + ".json").write_text(json.dumps(results))
