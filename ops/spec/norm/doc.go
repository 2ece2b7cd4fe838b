// Package norm has the specs of RMSNorm and Softmax, which reduce rows, and of their gradients.
package norm
