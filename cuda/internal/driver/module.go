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

// Function is a kernel of a module. Launches of it are made by Prepare.
type Function struct {
	m    *Module
	h    FunctionHandle
	name string

	maxThreads int // of a block, with the registers that the kernel uses
	registers  int // of a thread
	static     int // bytes of static shared memory of a block
	params     int // bytes of its only parameter, -1 where the driver does not tell

	mu      sync.Mutex
	dynamic int // bytes of dynamic shared memory that a launch may have so far
}

// LoadModule loads a cubin, a fat binary or PTX. An image without code for the device is an error that says so.
func (d *Device) LoadModule(image []byte) (*Module, error) {
	if len(image) == 0 {
		return nil, d.failed("load module", errors.New("the image is empty"))
	}
	m := &Module{d: d, functions: map[string]*Function{}}
	err := d.do("load module", func() error {
		// A copy is aligned, as embedded text need not be, and has the zero byte at the end that PTX needs.
		text := make([]byte, len(image)+1)
		copy(text, image)
		h, log, r := d.drv.ModuleLoadData(text)
		err := d.check("cuModuleLoadDataEx", r)
		if r == NoBinary {
			c := d.prop.Capability
			err = fmt.Errorf("the image has no code for compute capability %d.%d: %w", c/10, c%10, err)
		}
		if err == nil {
			m.h = h
			d.adopt(m, kind{"module", 0})
		} else if log != "" {
			err = fmt.Errorf("%w: %s", err, log)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Function returns the kernel of the given name, which is the mangled one unless it is declared extern "C". A kernel takes
// one argument, a struct.
func (m *Module) Function(name string) (*Function, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.functions[name]; f != nil {
		return f, nil
	}
	f := &Function{m: m, name: name}
	if err := m.d.do("kernel "+name, f.lookUp); err != nil {
		return nil, err
	}
	m.functions[name] = f
	return f, nil
}

// lookUp asks the driver for the kernel and what it is like.
func (f *Function) lookUp() error {
	if f.m.h == 0 {
		return fmt.Errorf("the module is %w", errClosed)
	}
	d, r := f.m.d, Success
	f.h, r = d.drv.ModuleGetFunction(f.m.h, f.name)
	if err := d.check("cuModuleGetFunction", r); err != nil {
		return err
	}
	for _, a := range []struct {
		of FunctionAttribute
		to *int
	}{{FuncMaxThreads, &f.maxThreads}, {FuncSharedBytes, &f.static}, {FuncRegisters, &f.registers}, {FuncMaxDynamicShared, &f.dynamic}} {
		if *a.to, r = d.drv.FuncGetAttribute(a.of, f.h); r != Success {
			return d.check("cuFuncGetAttribute", r)
		}
	}
	first, r := d.drv.FuncGetParamInfo(f.h, 0)
	if r == NotSupported {
		f.params = -1
		return nil
	}
	if r == Success {
		f.params = first
		_, r = d.drv.FuncGetParamInfo(f.h, 1) // InvalidValue, since there is no second one
	}
	if r == Success || r == InvalidValue && f.params == 0 {
		return errors.New("want a kernel with one parameter")
	}
	if r == InvalidValue {
		return nil
	}
	return d.check("cuFuncGetParamInfo", r)
}

// allow lets launches have that much dynamic shared memory. A kernel has 48 KB at most until the driver is asked for more.
func (f *Function) allow(bytes int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if bytes <= f.dynamic {
		return nil
	}
	d := f.m.d
	return d.Do(func() error {
		err := d.check("cuFuncSetAttribute", d.drv.FuncSetAttribute(f.h, FuncMaxDynamicShared, bytes))
		if err == nil {
			f.dynamic = bytes
		}
		return err
	})
}

// loaded reports whether the kernel's module has not been unloaded.
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
	return release(m.d, &m.h, "cuModuleUnload", m.d.drv.ModuleUnload)
}
