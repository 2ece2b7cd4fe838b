package main

import (
	"math/rand/v2"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// base is the model whose sizes most suites use.
var base = tinylm.Base()

// input returns a float32 input of normal numbers.
func input(g *G.ExprGraph, name string, shape ...int) *G.Node {
	return inputOf(g, name, normal(tensor.Shape(shape).TotalSize()), shape...)
}

// inputOf returns an input that holds data.
func inputOf[T float32 | int32](g *G.ExprGraph, name string, data []T, shape ...int) *G.Node {
	v := tensor.New(tensor.WithShape(shape...), tensor.WithBacking(data))
	return G.NewTensor(g, v.Dtype(), len(shape), G.WithShape(shape...), G.WithName(name), G.WithValue(v))
}

// addGradients adds the gradients of wrt to the graph of y, whose own gradient is dy.
func addGradients(y, dy *G.Node, wrt ...*G.Node) {
	must(graph.Grad(must(G.Sum(must(G.HadamardProd(y, dy)))), wrt...))
}

// normal returns n numbers of a normal distribution, the same in every run. They repeat with a period that shares no
// factor with any size.
func normal(n int) []float32 {
	const period = 9_999_991
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	x := make([]float32, n)
	for i := range x[:min(n, period)] {
		x[i] = float32(rng.NormFloat64())
	}
	for at := period; at < n; at += copy(x[at:], x[:period]) {
	}
	return x
}

// sequence returns n tokens that cycle through all bytes.
func sequence(n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(i * 7919 % 256)
	}
	return tokens
}

// fillTokens fills m with the tokens of sequence, and the next tokens as targets.
func fillTokens(m *tinylm.Model) {
	copy(m.Tokens(), sequence(len(m.Tokens())))
	m.NextTokens()
}
