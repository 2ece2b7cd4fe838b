// Package decode has the specs of decoding with a KVCache: Step adds a token to each sequence, FillCache a prompt, Extend a run of tokens
// to sequences that have some. They have no constructors: nn.NSA.Decode, Fill and Extend of package graph/nn build them.
package decode
