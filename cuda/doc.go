// Package cuda runs graphs on an NVIDIA GPU: a graph.Backend on package driver, with the kernels of package kernels.
//
//	b, err := cuda.Open(0)                                // *driver.Unavailable where there is no GPU to use
//	m, err := graph.NewMachine(g, graph.WithBackend(b))
//	err = m.RunAll()                                      // returns before the device has done it
//	err = m.Synchronize()
//	err = m.Close()
//	err = b.Close()                                       // after everything that runs on it
//
// Nothing of CUDA is needed to build it, and no C compiler: see package driver. What the device holds after a run is a *Value,
// which copies to the host when it is asked for its data.
//
// Every op of package ops has kernels, forward and backward, in float32 and in half precision; float64 runs on the host. Same
// inputs give the same bits in every run, captured or not.
//
// An error of enqueued work comes in a later call, as a *graph.LaunchError where one kernel alone can have caused it, and as
// a *driver.Fault that lists the suspects otherwise; open the backend with driver.WithBlockingLaunches to learn which it is.
// After it the backend is of no use but for Close. Tokens outside of their vocabulary are no error here, as they are on
// the CPU: their rows are NaN.
package cuda
