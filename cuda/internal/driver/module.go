package driver

import (
	"errors"
	"fmt"
	"sync"
)

// Module is a loaded image of kernels.
type Module struct {
	d *Device

	mu        sync.Mutex
	h         ModuleHandle // 0 once unloaded
	functions map[string]*Function
}

// FunctionInfo is what the driver knows of a kernel.
type FunctionInfo struct {
	MaxThreads    int   // of a block, with the registers that the kernel uses
	SharedBytes   int   // static, a block
	LocalBytes    int   // a thread; more than 0 means spilled registers or arrays in memory
	Registers     int   // a thread
	BinaryVersion int   // ten times the major capability plus the minor one that the code is for
	Params        []int // bytes of each parameter; nil where the driver, older than CUDA 12.4, does not tell
}

// Function is a kernel of a module. Launches of it are made by Prepare.
type Function struct {
	m    *Module
	h    FunctionHandle
	name string
	info FunctionInfo

	mu      sync.Mutex
	dynamic int // bytes of dynamic shared memory that a launch may have so far
}

// LoadModule loads a cubin, a fat binary or PTX. An image without code for the device is an error that says so.
func (d *Device) LoadModule(image []byte) (*Module, error) {
	if len(image) == 0 {
		return nil, d.failed("load module", errors.New("the image is empty"))
	}
	if err := d.enter(); err != nil {
		return nil, d.failed("load module", err)
	}
	defer d.leave()
	// A copy is aligned, as embedded text need not be, and has the zero byte at the end that PTX needs.
	text := make([]byte, len(image)+1)
	copy(text, image)
	h, log, r := d.drv.ModuleLoadData(text)
	if err := d.check(nil, "cuModuleLoadDataEx", r); err != nil {
		if r == NoBinary {
			err = fmt.Errorf("the image has no code for compute capability %d.%d: %w", d.prop.Capability/10,
				d.prop.Capability%10, err)
		}
		if log != "" {
			err = fmt.Errorf("%w: %s", err, log)
		}
		return nil, d.failed("load module", err)
	}
	m := &Module{d: d, h: h, functions: map[string]*Function{}}
	d.adopt(m, kind{"module", 0})
	return m, nil
}

// Function returns the kernel of the given name, which is the mangled one unless it is declared extern "C".
func (m *Module) Function(name string) (*Function, error) {
	d, what := m.d, "kernel "+name
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.functions[name]; f != nil {
		return f, nil
	}
	if err := d.enter(); err != nil {
		return nil, d.failed(what, err)
	}
	defer d.leave()
	if m.h == 0 {
		return nil, d.failed(what, fmt.Errorf("the module is %w", errClosed))
	}
	h, r := d.drv.ModuleGetFunction(m.h, name)
	if err := d.check(nil, "cuModuleGetFunction", r); err != nil {
		return nil, d.failed(what, err)
	}
	f := &Function{m: m, h: h, name: name}
	for _, a := range []struct {
		a  FunctionAttribute
		at *int
	}{
		{FuncMaxThreads, &f.info.MaxThreads}, {FuncSharedBytes, &f.info.SharedBytes}, {FuncLocalBytes, &f.info.LocalBytes},
		{FuncRegisters, &f.info.Registers}, {FuncBinaryVersion, &f.info.BinaryVersion}, {FuncMaxDynamicShared, &f.dynamic},
	} {
		if *a.at, r = d.drv.FuncGetAttribute(a.a, h); r != Success {
			return nil, d.failed(what, d.check(nil, "cuFuncGetAttribute", r))
		}
	}
	if err := f.layout(); err != nil {
		return nil, d.failed(what, err)
	}
	m.functions[name] = f
	return f, nil
}

// layout asks for the sizes of the parameters.
func (f *Function) layout() error {
	d, sizes := f.m.d, []int{}
	for {
		n, r := d.drv.FuncGetParamInfo(f.h, len(sizes))
		switch r {
		case Success:
			sizes = append(sizes, n)
			continue
		case InvalidValue:
			f.info.Params = sizes
			return nil
		case NotSupported:
			return nil
		}
		return d.check(nil, "cuFuncGetParamInfo", r)
	}
}

// Name returns the kernel's name.
func (f *Function) Name() string { return f.name }

// Info returns what the driver knows of the kernel.
func (f *Function) Info() FunctionInfo { return f.info }

// MaxShared returns the bytes of dynamic shared memory that a block of the kernel can have.
func (f *Function) MaxShared() int { return max(0, f.m.d.prop.SharedPerBlock-f.info.SharedBytes) }

// allow lets launches have that much dynamic shared memory. A kernel has 48 KB at most until the driver is asked for more.
func (f *Function) allow(bytes int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if bytes <= f.dynamic {
		return nil
	}
	d := f.m.d
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if err := d.check(nil, "cuFuncSetAttribute", d.drv.FuncSetAttribute(f.h, FuncMaxDynamicShared, bytes)); err != nil {
		return err
	}
	f.dynamic = bytes
	return nil
}

// loaded says whether the kernel's module is there.
func (f *Function) loaded() bool {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return f.m.h != 0
}

// Unload frees the module with its kernels. No launch of them may be under way.
func (m *Module) Unload() error { return m.d.free(m, "unload module") }

func (m *Module) destroy() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.h == 0 {
		return nil
	}
	if err := m.d.check(nil, "cuModuleUnload", m.d.drv.ModuleUnload(m.h)); err != nil {
		return err
	}
	m.h = 0
	return nil
}
