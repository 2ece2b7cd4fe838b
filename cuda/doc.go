// Package cuda runs graphs on an NVIDIA GPU: a graph.Backend.
//
//	b, err := cuda.Open(0)                                // *Unavailable without a usable GPU
//	m, err := graph.NewMachine(g, graph.WithBackend(b))
//	err = m.RunAll()                                      // returns before the device has done it
//	err = m.Synchronize()
//	err = m.Close()
//	err = b.Close()                                       // after everything that runs on it
//
// The build needs neither CUDA nor a C compiler. After a run the value of a node is a *Value: device memory, which Data
// copies to the host.
//
// Every op of package ops but Int32Op, which runs on the host, has kernels, forward and backward, in float32 and in
// half precision. float64 runs on the host. The same inputs give the same bits in every run, captured or not.
// Gorgonia's own ops give the host's results, except at the edges of float32: a quotient by zero and a softmax with
// infinities follow IEEE, which package tensor does not, and a maximum keeps a NaN.
//
// Enqueued work runs later, so its error comes from a later call. The error is a *Fault, which lists the suspects.
// errors.As also finds a *graph.LaunchError in it, with the kernel if only one can have failed. Open the backend with
// WithBlockingLaunches to learn which launch failed. After a Fault only Close works. A machine refuses host tokens
// outside their vocabulary, as on the CPU. Such tokens that the device has computed give rows of NaN.
package cuda
