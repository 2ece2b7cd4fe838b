// Package nn builds layers as Gorgonia graphs: parameters with their first values, the layer of Native Sparse Attention,
// and files of weights. Builder is what layers and models are written with.
package nn
