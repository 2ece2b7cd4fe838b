"""Makes the folders beside it: random models of transformers, each with the logits of a text.

    python3 make.py

The versions are those of versions.txt. Run it in a folder of its own: it replaces what is there.
"""
import pathlib
import shutil

import numpy
import torch
import transformers
from safetensors.numpy import save_file

sizes = dict(vocab_size=67, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-5)
llama3 = dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
models = {
    "llama3": transformers.LlamaConfig(**sizes, rope_parameters=llama3, tie_word_embeddings=False),
    "llama_bias": transformers.LlamaConfig(**sizes, attention_bias=True, head_dim=8, tie_word_embeddings=True,
                                           rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=10000.0)),
    "qwen2": transformers.Qwen2Config(**sizes, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**sizes, head_dim=8, tie_word_embeddings=False),
    "mistral": transformers.MistralConfig(**sizes, sliding_window=None, head_dim=6),
}
here = pathlib.Path(__file__).parent
for i, (name, config) in enumerate(models.items()):
    torch.manual_seed(i)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    for p in model.parameters():  # biases and norms, too
        p.data = torch.randn_like(p) * (0.5 if p.dim() > 1 else 0.2) + (1 if p.dim() == 1 else 0)
    folder = here / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size="12KB" if i % 2 else "1GB")
    tokens = torch.randint(0, 67, (2, 90))
    with torch.no_grad():
        logits = model.double()(tokens).logits
    save_file({"tokens": tokens.numpy().astype(numpy.int32), "logits": logits.numpy().astype(numpy.float32)},
              folder / "logits.safetensors")
    (folder / "generation_config.json").unlink(missing_ok=True)
(here / "versions.txt").write_text(f"transformers {transformers.__version__}, torch {torch.__version__}\n")

# An adapter of peft, and the logits of llama3 with it.
import peft

torch.manual_seed(9)
model = transformers.AutoModelForCausalLM.from_pretrained(here / "llama3", dtype=torch.float32)
model = peft.get_peft_model(model, peft.LoraConfig(
    r=3, lora_alpha=12, target_modules=["q_proj", "v_proj", "o_proj", "down_proj"], task_type="CAUSAL_LM"))
for name, p in model.named_parameters():
    if "lora_" in name:
        p.data = torch.randn_like(p) * 0.2
model.save_pretrained(here / "adapter")
(here / "adapter" / "README.md").unlink(missing_ok=True)
config = here / "adapter" / "adapter_config.json"
config.write_text(config.read_text().replace(str(here / "llama3"), "llama3"))
with torch.no_grad():
    logits = model.double()(tokens).logits
save_file({"tokens": tokens.numpy().astype(numpy.int32), "logits": logits.numpy().astype(numpy.float32)},
          here / "adapter" / "logits.safetensors")
