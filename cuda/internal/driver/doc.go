// Package driver drives NVIDIA GPUs through the CUDA driver library, which is opened at run time: devices, memory, streams,
// kernels, captured graphs. Nothing of CUDA is needed to build it, and no C compiler.
//
//	dev, err := driver.Open(0)         // *Unavailable where there is no GPU to use
//	mod, err := dev.LoadModule(ptx)    // or a fat binary
//	f, err := mod.Function("vector_add")
//	s, err := dev.NewStream()
//	c, err := f.Prepare("add", driver.Dim{X: 4}, driver.Dim{X: 256}, 0, args)
//	err = s.Launch(c)                  // allocates nothing
//	err = s.Synchronize()
//	err = dev.Close()                  // reports what has not been freed
//
// What runs on the device runs later than the calls that enqueue it. An error of such work arrives in a later call, as a
// *Fault that lists the launches that may have caused it; the device cannot be used after it.
//
// A Device may be used by several goroutines, and several devices at once. A Stream, the calls prepared for it and its
// captures belong to one goroutine at a time, which may move between operating system threads. Calls make the primary
// context of their device current on the thread they run on, as the CUDA runtime does, and leave it so.
//
// There is no global device, and nothing here panics for bad input. Package fakedriver is a library for tests, which injects
// failures and counts leaks.
package driver
