// Package linear has the specs of linear layers, their gradients, and several layers fused into one product.
package linear
