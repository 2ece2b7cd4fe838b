// Package decode has the specs of decoding with a KVCache: Step adds a token to each sequence, FillCache a prompt. They
// have no constructors: nn.NSA.Decode and Fill of package graph/nn build them.
package decode
