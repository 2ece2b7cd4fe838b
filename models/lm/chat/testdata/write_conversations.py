"""Writes what transformers makes of conversations by the chat templates of this folder, as text and as tokens of a small tokenizer. The templates
are those of the models, without tools; llama3.jinja has the date of a model without strftime_now.

    pip install transformers==5.24.0 tokenizers==0.23.3 jinja2==3.1.6
    python write_conversations.py | gzip -9n > conversations.json.gz
"""

import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TOKENS = {"smollm2": ("<|im_start|>", "<|im_end|>"), "llama3": ("<|begin_of_text|>", "<|eot_id|>"), "qwen2.5": (None, "<|im_end|>"), "qwen3": (None, "<|im_end|>"), "mistral": ("<s>", "</s>")}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<s>", "</s>", "[INST]", "[/INST]"]
CONVERSATIONS = [
    [("user", "Hi")],
    [("system", "Be brief."), ("user", "What is 12 * 34?")],
    [("user", " Hello \n"), ("assistant", "Hi, how are you?"), ("user", "Fine\n\n")],
    [("system", " \tYou speak German. "), ("user", "Größe?"), ("assistant", "日本語 😀"), ("user", "e\u0301 ½")],
    [("user", "1 < 2 && \"x\" != 'y'"), ("assistant", "def f(x):\n    return {'a': [x]}\n"), ("user", "{{ messages }} {% if %}")],
    [("user", "Think."), ("assistant", "<think>\nhm\n</think>\n\nDone."), ("user", "Why?"), ("assistant", "<think>a</think>b")],
    [("user", "x"), ("assistant", "\n\nno thoughts\n")],
    [("user", ""), ("assistant", ""), ("user", " ")],
    [("assistant", "I begin.")],
    [("user", "a"), ("user", "b")],
    [("system", "only a system message")],
    [("user", "<tool_response>1</tool_response>"), ("assistant", "x</think>y"), ("user", "<tool_response>2</tool_response>")],
    [("pirate", "arr"), ("user", "?")],
    [("system", "s"), ("user", "u"), ("system", "s"), ("user", "v"), ("assistant", "w")],
]


def tokenizer():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    text = [m for c in CONVERSATIONS for _, m in c] + [p.read_text() for p in Path(__file__).parent.glob("*.jinja")]
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=320, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_special_tokens(SPECIAL)
    t.add_tokens([AddedToken(x, normalized=False, special=False) for x in ("<think>", "</think>")])
    return t


def main():
    t, out = tokenizer(), []
    for name, (bos, eos) in TOKENS.items():
        template = Path(__file__).with_name(name + ".jinja").read_text()
        fast = PreTrainedTokenizerFast(tokenizer_object=t, bos_token=bos, eos_token=eos, chat_template=template)
        for conversation in CONVERSATIONS:
            messages = [{"role": r, "content": c} for r, c in conversation]
            for prompt in (False, True):
                for variables in ({}, {"enable_thinking": False}) if name == "qwen3" else ({},):
                    case = {"template": name, "bos": bos, "eos": eos, "messages": messages, "prompt": prompt, "variables": variables}
                    options = {"add_generation_prompt": prompt, "return_dict": False, **variables}
                    try:
                        case["text"] = fast.apply_chat_template(messages, tokenize=False, **options)
                        case["ids"] = fast.apply_chat_template(messages, tokenize=True, **options)
                    except Exception as e:
                        case["error"] = str(e)
                    out.append(case)
    json.dump({"tokenizer": json.loads(t.to_str()), "conversations": out}, sys.stdout, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    main()
