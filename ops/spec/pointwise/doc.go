// Package pointwise has the specs of ops that compute each element from few others: Add, SiLU, SwiGLU, Sigmoid, GatedSum,
// RoPE, Repeat, and of their gradients.
package pointwise
