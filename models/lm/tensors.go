package lm

import "io"

// Tensors are the weights in a file or folder, of which each is read alone: a *gguf.File or a *pretrained.Folder.
type Tensors interface {
	// Names returns the names of all tensors.
	Names() []string
	// Shape returns the shape of a tensor in row-major order, such as [out,in] of a linear layer, and whether there is
	// one of this name.
	Shape(name string) (shape []int, ok bool)
	// Read reads a tensor into dst, which has as many elements, converted to float32.
	Read(name string, dst []float32) error
	io.Closer
}
