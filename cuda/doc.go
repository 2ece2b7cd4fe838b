// Package cuda runs graphs on an NVIDIA GPU: a graph.Backend.
//
//	b, err := cuda.Open(0)                                // *Unavailable where there is no GPU to use
//	m, err := graph.NewMachine(g, graph.WithBackend(b))
//	err = m.RunAll()                                      // returns before the device has done it
//	err = m.Synchronize()
//	err = m.Close()
//	err = b.Close()                                       // after everything that runs on it
//
// Nothing of CUDA is needed to build it, and no C compiler. What the device holds after a run is a *Value,
// which copies to the host when it is asked for its data.
//
// Every op of package ops has kernels, forward and backward, in float32 and in half precision; float64 runs on the host. Same
// inputs give the same bits in every run, captured or not. Gorgonia's own ops give what they give on the host but at the edges
// of float32: a quotient by zero and a softmax with infinities are IEEE's, which package tensor's are not, and a maximum keeps
// a NaN.
//
// An error of enqueued work comes in a later call, as a *graph.LaunchError with the kernel where one alone can have caused it,
// and a *Fault that lists the suspects; open the backend with WithBlockingLaunches to learn which it is. After it
// the backend is of no use but for Close. A machine refuses tokens of the host that are outside of their vocabulary, as on the
// CPU; those that have been computed on the device give rows of NaN.
package cuda
