// Package pointwise has the specs of ops that compute each element from few others: Add, SiLU, Sigmoid, GatedSum, RoPE,
// and of their gradients.
package pointwise
