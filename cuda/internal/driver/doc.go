// Package driver drives NVIDIA GPUs through the CUDA driver library, which is opened at run time: devices, memory,
// streams, kernels, captured graphs. The build needs neither CUDA nor a C compiler.
//
//	dev, err := driver.Open(0)         // *Unavailable without a usable GPU
//	mod, err := dev.LoadModule(ptx)    // or a fat binary
//	f, err := mod.Function("vector_add")
//	s, err := dev.NewStream()
//	c, err := f.Prepare("add", driver.Dim{X: 4}, driver.Dim{X: 256}, 0, args)
//	err = s.Launch(c)                  // allocates nothing
//	err = s.Synchronize()
//	err = dev.Close()                  // reports what has not been freed
//
// Enqueued work runs on the device later than the call that enqueues it. Its error arrives in a later call, as a *Fault
// that lists the launches that may have caused it. The device cannot be used after a Fault.
//
// A Device may be used by several goroutines, and several devices at once. A Stream, the calls prepared for it and its
// captures belong to one goroutine at a time, which may move between operating system threads. A call makes the primary
// context of its device current on its thread and leaves it current, as the CUDA runtime does.
//
// There is no global device, and nothing here panics for bad input. Package fakedriver replaces the driver library in
// tests: it injects failures and counts leaks.
package driver
