// Package lm opens language models that other programs have made, and writes models for them: folders as Hugging Face's
// transformers keeps them, and GGUF files. It takes the families Llama, Mistral, Qwen2 and Qwen3, and gives them the form
// of tinylm.Weights, so that all programs of this module run them.
package lm
